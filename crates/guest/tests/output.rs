//! Output: large output, resuming after a broken link, forgetting.
// Clippy does not recognize the helper functions as part of the tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::Duration;

use protocol::{CallStatus, ExecEnd, Follow, GuestClient};
use support::*;

const HEAD: usize = 8 * 1024 * 1024;

#[tokio::test]
async fn long_output_keeps_first_and_last_8_mib_with_bounded_memory() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let total: u64 = 200 * 1024 * 1024;
    let command = format!("seq 1 100000000 | head -c {total}");
    let (seen, outcome) = run(&client, shell("long", &command)).await;
    assert_eq!((outcome.end, outcome.output_bytes), (ExecEnd::Code(0), total));
    assert_eq!(seen.gaps.len(), 1);
    let (from, to, missing) = seen.gaps[0];
    assert_eq!(missing, outcome.dropped_bytes);
    assert_eq!(total - missing, seen.stdout.len() as u64);
    // Only whole chunks are kept, so the total slightly exceeds twice 8 MiB.
    assert!((2 * HEAD..=2 * HEAD + HEAD / 4).contains(&seen.stdout.len()), "{}", seen.stdout.len());
    assert!(seen.stdout.starts_with(b"1\n2\n3\n"));
    let expected: Vec<u64> = (0..from).chain(to..outcome.next_sequence).collect();
    assert_eq!(seen.sequences, expected);
    let tail = run_shell(&client, "tail", &format!("seq 1 100000000 | head -c {total} | tail -c 1000")).await;
    assert!(seen.stdout.ends_with(tail.as_bytes()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 24 * 1024, "the guest grew to {peak} kB");
    let files = std::fs::read_dir(guest.state().join("calls/long.1")).unwrap();
    let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(on_disk <= 24 * 1024 * 1024, "{on_disk}");
}

#[tokio::test]
async fn a_live_follower_gets_everything_that_it_can_keep_up_with() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = shell("live", "for i in 1 2 3 4 5 6; do head -c 4194304 /dev/zero; read line; done");
    call.keep_stdin_open = true;
    let mut follower = client.exec(call, Follow::Live).await.unwrap();
    let mut input = client.input(key("live")).await.unwrap();
    let mut seen = Seen::default();
    for round in 1..=6 {
        while seen.stdout.len() < round * 4_194_304 {
            assert!(seen.take(follower.next().await.unwrap()).is_none());
        }
        input.write(b"\n").await.unwrap();
    }
    let outcome = finish_into(&mut follower, &mut seen).await;
    assert_eq!((seen.stdout.len(), seen.gaps.len()), (6 * 4_194_304, 0));
    assert_eq!(seen.sequences, (0..outcome.next_sequence).collect::<Vec<_>>());
}

/// A command that prints far more than is kept.
const MUCH: &str = "seq 4000000";

#[tokio::test]
async fn process_waits_for_a_paced_follower_without_gaps() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut follower = client.exec(shell("paced", MUCH), Follow::Paced).await.unwrap();
    let (seen, outcome) = finish(&mut follower).await;
    assert_eq!(seen.gaps, []);
    assert_eq!(seen.sequences, (0..outcome.next_sequence).collect::<Vec<_>>());
    let expected: String = (1..=4_000_000).map(|number| format!("{number}\n")).collect();
    assert!(seen.text() == expected, "{} bytes that are not what was printed", seen.stdout.len());
}

/// The store's limit on the number of chunks takes effect before the limit on bytes.
#[tokio::test]
async fn a_process_that_prints_byte_by_byte_waits_too() {
    const PIECES: usize = 1_000_000;
    let guest = TestGuest::start();
    let client = guest.client().await;
    let line = format!("dd if=/dev/zero bs=1 count={PIECES} 2>/dev/null");
    let mut follower = client.exec(shell("small", &line), Follow::Paced).await.unwrap();
    // Let the process get far ahead before reading anything.
    let mut printed = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        match client.call_status(key("small")).await.unwrap() {
            CallStatus::Running { next_sequence } if next_sequence > printed => printed = next_sequence,
            _ => break,
        }
    }
    let (seen, outcome) = finish(&mut follower).await;
    assert_eq!((seen.gaps, outcome.end), (vec![], ExecEnd::Code(0)));
    assert_eq!(seen.stdout.len(), PIECES);
}

#[tokio::test]
async fn idle_paced_follower_blocks_the_process_until_it_disconnects() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let follower = client.exec(shell("held", &format!("{MUCH}; echo over")), Follow::Paced).await.unwrap();
    // Other followers are served and receive everything that was read from the process so far.
    let mut watcher = client.follow(key("held"), 0, Follow::Live).await.unwrap();
    let mut seen = Seen::default();
    while seen.stdout.len() < 4 * 1024 * 1024 {
        assert!(seen.take(watcher.next().await.unwrap()).is_none());
    }
    // Keep reading while output arrives. Of its about 30 MB, a blocked process prints less than 8 MiB, no matter how
    // slow it is.
    while let Ok(update) = tokio::time::timeout(Duration::from_millis(300), watcher.next()).await {
        assert!(seen.take(update.unwrap()).is_none());
        assert!(seen.stdout.len() < HEAD, "{} bytes came: nothing holds the process", seen.stdout.len());
    }
    let status = client.call_status(key("held")).await.unwrap();
    assert!(matches!(status, CallStatus::Running { .. }), "it did not wait: {status:?}");
    drop(follower);
    let outcome = finish_into(&mut watcher, &mut seen).await;
    assert_eq!(outcome.end, ExecEnd::Code(0));
    assert!(seen.stdout.ends_with(b"4000000\nover\n"));
}

#[tokio::test]
async fn follower_resumes_after_a_broken_link_without_gap_or_repeat() {
    let guest = TestGuest::start();
    let mut call =
        shell("resumed", "for i in $(seq 200); do echo line $i; sleep 0.002; done; read line; echo end");
    call.keep_stdin_open = true;
    let mut seen = Seen::default();
    let (client, welcome, _) = guest.connect().await;
    let mut follower = client.exec(call.clone(), Follow::Capped).await.unwrap();
    wait_for_output(&mut follower, &mut seen, "line 3\n").await;
    client.link().close();
    drop((client, follower));

    let (client, again, _) = guest.connect().await;
    assert_eq!(welcome.boot_id, again.boot_id);
    let next = seen.sequences.len() as u64;
    let mut follower = client.follow(key("resumed"), next, Follow::Capped).await.unwrap();
    wait_for_output(&mut follower, &mut seen, "line 200\n").await;
    client.input(key("resumed")).await.unwrap().finish().await.unwrap();
    let outcome = finish_into(&mut follower, &mut seen).await;
    assert_eq!(outcome.end, ExecEnd::Code(0));
    assert_eq!(seen.sequences, (0..outcome.next_sequence).collect::<Vec<_>>());
    let expected: String = (1..=200).map(|number| format!("line {number}\n")).collect();
    assert_eq!(seen.text(), expected + "end\n");
    assert_eq!(all_of(&client, "resumed").await, seen.text());
}

async fn all_of(client: &GuestClient, name: &str) -> String {
    finish(&mut client.follow(key(name), 0, Follow::Capped).await.unwrap()).await.0.text()
}

#[tokio::test]
async fn progress_is_reported_while_output_is_withheld() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = shell("held", "head -c 9000000 /dev/zero; read line");
    call.keep_stdin_open = true;
    let mut follower = client.exec(call, Follow::Capped).await.unwrap();
    let mut seen = Seen::default();
    while seen.progress.last() != Some(&9_000_000) {
        assert!(seen.take(follower.next().await.unwrap()).is_none());
    }
    assert!(
        (HEAD..9_000_000).contains(&seen.stdout.len()),
        "{} bytes came before the end",
        seen.stdout.len()
    );
    client.input(key("held")).await.unwrap().finish().await.unwrap();
    finish_into(&mut follower, &mut seen).await;
    assert_eq!((seen.stdout.len(), seen.gaps.len()), (9_000_000, 0));
}

#[tokio::test]
async fn forgotten_output_is_gone_but_the_result_and_the_key_stay() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut runs = shell("runs", "read line");
    runs.keep_stdin_open = true;
    let _follower = client.exec(runs, Follow::Capped).await.unwrap();
    client.ping().await.unwrap();
    assert!(client.forget(key("runs")).await.is_err());
    assert!(client.forget(key("unknown")).await.is_err());

    run_shell(&client, "told", "echo hello; echo x >> count").await;
    client.forget(key("told")).await.unwrap();
    let (seen, outcome) = run(&client, shell("told", "echo hello; echo x >> count")).await;
    assert_eq!((seen.stdout.len(), seen.gaps.clone()), (0, vec![(0, 1, 6)]));
    assert_eq!(outcome.end, ExecEnd::Code(0));
    assert_eq!(std::fs::read(guest.workspace().join("count")).unwrap(), b"x\n");
    assert!(!guest.state().join("calls/told.1/head").exists());
    let journal = std::fs::read_to_string(guest.state().join("journal.jsonl")).unwrap();
    let of_call: Vec<&str> = journal.lines().filter(|line| line.contains(r#""told.1""#)).collect();
    assert!(
        of_call.len() == 2 && of_call[0].contains("request") && of_call[1].contains("result"),
        "{journal}"
    );
}

#[tokio::test]
async fn an_unknown_call_cannot_be_followed() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    assert!(client.follow(key("never"), 0, Follow::Live).await.unwrap().next().await.is_err());
}
