//! Tests of the history search: whole outputs, damaged indexes, late vectors.

use std::sync::Condvar;
use std::time::Duration;

use model::scripted::ScriptedEmbeddings;

use super::vectors::QueryTimeout;
use super::*;

fn record(sequence: u64, text: &str) -> Record {
    Record::new(sequence, 1_700_000_000_000, RecordKind::Result, text.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn search_survives_restart_and_index_damage() {
    let folder = std::env::temp_dir().join(format!("caisson-recall-{}", std::process::id()));
    let records: Vec<Record> = (1..400)
        .map(|number| {
            record(number * 2, &format!("step {number} calls parseHeader{number}() in src/http/m{number}.rs"))
        })
        .collect();
    let check = async |recall: Recall| {
        let answer = recall.search("parseHeader217", &records, 1).await.unwrap();
        assert!(answer.starts_with("[e434]"), "{answer}");
        assert!(answer.contains("before: [e432]") && answer.contains("after: [e436]"), "{answer}");
    };
    check(Recall::new(folder.clone(), None, None)).await;
    check(Recall::new(folder.clone(), None, None)).await;
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::fs::write(file, b"damaged").unwrap();
    check(Recall::new(folder.clone(), None, None)).await;
    let _ = std::fs::remove_dir_all(folder);
}

/// A separate directory for each test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("caisson-recall-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn index_damage_found_by_a_search_triggers_a_rebuild() {
    let folder = folder("damage");
    let records: Vec<Record> = (1..400)
        .map(|number| record(number, &format!("step {number} calls parseHeader{number}()")))
        .collect();
    let search = async |folder: &PathBuf| {
        // Late enough for everything to be committed.
        Recall::new(folder.clone(), None, None).search("parseHeader217", &records, i64::MAX).await
    };
    Recall::new(folder.clone(), None, None).search("x", &records, 0).await.unwrap();
    search(&folder).await.unwrap();
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let file = files.filter(|path| path.extension().is_some_and(|end| end == "words")).min().unwrap();
    let whole = std::fs::read(&file).unwrap();
    let fails = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        std::fs::write(&file, &bytes).unwrap();
        let index = Index::open(&folder);
        index.is_ok_and(|index| index.search(Query::words("parseHeader217 step", 5)).is_err())
    };
    let damaged = (0..whole.len()).find(|at| fails(*at));
    assert!(damaged.is_some(), "no byte is met by a search alone");
    let answer = Recall::new(folder.clone(), None, None).search("parseHeader217 step", &records, 0).await;
    assert!(answer.unwrap().starts_with("[e217]"));
    let _ = std::fs::remove_dir_all(folder);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_index_additions_are_retried() {
    let place = folder("later");
    std::fs::write(&place, "a file where a folder should be").unwrap();
    let recall = Recall::new(place.join("recall"), None, None);
    let records = [record(1, "first_word"), record(2, "second_word")];
    recall.search("first_word", &records, 0).await.unwrap_err();
    std::fs::remove_file(&place).unwrap();
    for (word, event) in [("first_word", "[e1]"), ("second_word", "[e2]")] {
        let answer = recall.search(word, &records, 0).await.unwrap();
        assert!(answer.starts_with(event), "{answer}");
    }
    let _ = std::fs::remove_dir_all(place);
}

/// Outputs in memory whose first reads fail.
struct MemoryStore {
    texts: HashMap<String, String>,
    failures: Mutex<u32>,
}

#[async_trait]
impl OutputStore for MemoryStore {
    async fn whole(&self, digest: &str) -> Result<Option<String>, String> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err("the disk sleeps".into());
        }
        Ok(self.texts.get(digest).cloned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_outputs_are_indexed_after_a_failed_first_read() {
    let folder = folder("whole");
    let filler: String = (1..=20_000).map(|line| format!("line {line} says nothing\n")).collect();
    let whole = format!("{filler}needleOfTheMiddle_4711\n{filler}");
    let capped = context::output_cap::cap(&whole);
    let blob = capped.blob.unwrap();
    let texts = MemoryStore { texts: HashMap::from([(blob.digest.clone(), whole)]), failures: Mutex::new(1) };
    let large = Record { whole: Some(blob), ..record(2, &capped.text) };
    let records = [record(1, "before"), large, record(3, "after")];
    let recall = Recall::new(folder.clone(), None, Some(Arc::new(texts)));
    let answer = recall.search("needleOfTheMiddle_4711", &records, 0).await.unwrap();
    assert!(answer.starts_with("Nothing in"), "{answer}");
    let answer = recall.search("needleOfTheMiddle_4711", &records, 0).await.unwrap();
    assert!(answer.starts_with("[e2]") && answer.contains("20001: needleOfTheMiddle_4711"), "{answer}");
    assert!(answer.contains("before: [e1]") && answer.contains("after: [e3]"), "{answer}");
    let _ = std::fs::remove_dir_all(folder);
}

/// Blocks embedding requests for events until opened, and counts them.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    /// Blocks requests for events until the gate is open. Requests for queries pass.
    fn vectors_of(&self, texts: &[&str]) -> Option<Vec<Vec<f32>>> {
        if texts.iter().any(|text| text.contains("event")) {
            let mut now = self.state.lock().unwrap();
            now.0 += 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(now, |now| !now.1).unwrap());
        }
        let fruit_score = |text: &&str| f32::from(u8::from(text.contains("pear") || text.contains("fruit")));
        Some(texts.iter().map(|text| vec![fruit_score(text), 0.1]).collect())
    }

    /// Waits until this many requests for events have arrived.
    fn wait_for(&self, requests: usize) {
        let now = self.state.lock().unwrap();
        let timeout_limit = Duration::from_secs(120);
        let (_now, timeout) =
            self.changed.wait_timeout_while(now, timeout_limit, |now| now.0 < requests).unwrap();
        assert!(!timeout.timed_out(), "nobody asks for vectors");
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn query_does_not_wait_for_the_embedding_backlog() {
    let folder = folder("slow");
    let gate = Arc::new(Gate::default());
    let server_gate = Arc::clone(&gate);
    let server = ScriptedEmbeddings::start(move |texts| server_gate.vectors_of(texts)).unwrap();
    let settings = model::Settings { name: Some(server.name()), ..model::Settings::default() };
    let embeddings = Embeddings::new(&settings, "context.embeddings").unwrap();
    let recall = Recall {
        shared: Arc::new(Shared {
            folder: Some(folder.clone()),
            embeddings: Some(embeddings),
            query_timeout: QueryTimeout(Duration::from_secs(60)),
            ..Shared::default()
        }),
    };
    let mut records = vec![record(1, "event one is a pear"), record(2, "event two is a road")];
    recall.follow(&records, 0);
    tokio::task::block_in_place(|| gate.wait_for(1));
    records.push(record(3, "event three is a road"));
    let answer = recall.search("fruit", &records, 0).await.unwrap();
    assert!(answer.contains("Nothing in 3 events"), "the question had to wait: {answer}");
    assert!(answer.starts_with("[by words alone for 3 of 3 events, which have no vectors yet]"), "{answer}");
    assert_eq!(gate.state.lock().unwrap().0, 1, "one batch at a time");
    gate.open();
    let found = async {
        loop {
            let answer = recall.search("fruit", &records, 0).await.unwrap();
            if answer.starts_with("[e1]") && answer.contains("[e3]") {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), found).await.expect("vectors were lost");
    let _ = std::fs::remove_dir_all(folder);
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_of_another_length_are_replaced() {
    let folder = folder("lengths");
    let length = Arc::new(std::sync::atomic::AtomicUsize::new(2));
    let of_server = Arc::clone(&length);
    let server = ScriptedEmbeddings::start(move |texts| {
        let length = of_server.load(std::sync::atomic::Ordering::SeqCst);
        let is_fruit = |text: &&str| f32::from(u8::from(text.contains("pear") || text.contains("fruit")));
        Some(texts.iter().map(|text| [vec![is_fruit(text)], vec![0.1; length - 1]].concat()).collect())
    })
    .unwrap();
    let settings = model::Settings { name: Some(server.name()), ..model::Settings::default() };
    let recall =
        Recall::new(folder.clone(), Some(Embeddings::new(&settings, "context.embeddings").unwrap()), None);
    let records = [record(1, "event one is a pear"), record(2, "event two is a road")];
    let search = async || recall.search("fruit", &records, 0).await.unwrap();
    assert!(search().await.starts_with("[e1]"));
    length.store(3, std::sync::atomic::Ordering::SeqCst);
    let answer = search().await;
    assert!(answer.starts_with("[by words alone: the embeddings model has changed"), "{answer}");
    assert!(search().await.starts_with("[e1]"), "the vectors were not made again");
    let _ = std::fs::remove_dir_all(folder);
}
