//! Programs that start other programs, and programs whose options come before their subcommand: `sudo -u root rm` is
//! judged as `rm`, and `git -C app push` as `git push`.

use super::command_line::base_name;

/// A program whose options come before the words that matter.
struct Options {
    name: &'static str,
    /// Short options that take a value.
    short: &'static str,
    /// Long options that take a value as the next word if it does not follow `=`.
    long: &'static [&'static str],
    /// The number of positional arguments before the command.
    positional_words: usize,
}

const fn options(name: &'static str, short: &'static str, long: &'static [&'static str]) -> Options {
    Options { name, short, long, positional_words: 0 }
}

/// Programs that start another program after their own options.
const WRAPPERS: [Options; 24] = [
    options(
        "sudo",
        "ugphCDRrtTUa",
        &[
            "user",
            "group",
            "prompt",
            "host",
            "close-from",
            "chdir",
            "chroot",
            "role",
            "type",
            "command-timeout",
            "other-user",
        ],
    ),
    options("doas", "uC", &[]),
    options("env", "uC", &["unset", "chdir"]),
    options("nohup", "", &[]),
    options("time", "fo", &["format", "output"]),
    options("exec", "a", &[]),
    options("command", "", &[]),
    options("builtin", "", &[]),
    Options { positional_words: 1, ..options("timeout", "sk", &["signal", "kill-after"]) },
    options("nice", "n", &["adjustment"]),
    options("ionice", "cnpPu", &["class", "classdata"]),
    options("setsid", "", &[]),
    options("stdbuf", "ioe", &["input", "output", "error"]),
    options(
        "xargs",
        "adEILnPs",
        &["arg-file", "delimiter", "max-args", "max-procs", "max-chars", "process-slot-var"],
    ),
    options("busybox", "", &[]),
    options("unbuffer", "", &[]),
    Options { positional_words: 1, ..options("flock", "wE", &["wait", "timeout", "conflict-exit-code"]) },
    options("strace", "abeIoOpPsSuUX", &["trace", "output", "user", "attach", "string-limit"]),
    options("ltrace", "aAeFlnopsuwx", &["output", "library"]),
    Options { positional_words: 1, ..options("taskset", "", &[]) },
    Options { positional_words: 1, ..options("chrt", "TPD", &[]) },
    Options { positional_words: 1, ..options("chroot", "", &["userspec", "groups"]) },
    options("unshare", "SG", &["setuid", "setgid", "root", "wd"]),
    options("xvfb-run", "efnpsw", &["error-file", "auth-file", "server-num", "server-args", "wait"]),
];

/// The options of `watch`, which runs a command line repeatedly.
const WATCH: Options = options("watch", "nq", &["interval", "equexit"]);

/// The command line that `watch` runs.
pub(crate) fn watch_command(words: &[String]) -> &[String] {
    words.get(WATCH.skipped(words)..).unwrap_or_default()
}

/// Programs whose options may come before their subcommand.
const SUBCOMMAND_PROGRAMS: [Options; 8] = [
    options("git", "Cc", &["git-dir", "work-tree", "namespace", "exec-path", "config-env", "attr-source"]),
    options("npm", "C", &["prefix", "registry", "workspace", "userconfig", "loglevel"]),
    options("pnpm", "C", &["dir", "filter", "registry"]),
    options("yarn", "", &["cwd", "registry"]),
    options("cargo", "CZ", &["config", "color", "manifest-path"]),
    options("docker", "clH", &["config", "context", "host", "log-level", "tlscacert", "tlscert", "tlskey"]),
    options("kubectl", "ns", &["namespace", "context", "cluster", "kubeconfig", "server", "user", "token"]),
    options("gh", "R", &["repo", "hostname"]),
];

/// The words of the command that a program starts; `None` if it does not start others.
pub(crate) fn wrapped_command(words: &[String]) -> Option<Vec<String>> {
    let (first, rest) = words.split_first()?;
    let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.name == base_name(first))?;
    // `env -S` takes a whole command line as one word.
    if wrapper.name == "env"
        && let Some(at) = rest.iter().position(|word| word == "-S" || word == "--split-string")
    {
        let line = rest.get(at + 1)?.split_whitespace().map(str::to_owned);
        return Some(line.chain(rest.iter().skip(at + 2).cloned()).collect());
    }
    let skipped = wrapper.skipped(rest) + wrapper.positional_words;
    Some(rest.get(skipped..).unwrap_or_default().to_vec())
}

/// The command without the options that come before its subcommand.
pub(crate) fn without_options(words: Vec<String>) -> Vec<String> {
    let Some((first, rest)) = words.split_first() else { return words };
    let Some(program) = SUBCOMMAND_PROGRAMS.iter().find(|program| program.name == base_name(first)) else {
        return words;
    };
    match rest.get(program.skipped(rest)..) {
        Some(command) if !command.is_empty() => {
            std::iter::once(first.clone()).chain(command.iter().cloned()).collect()
        }
        _ => words,
    }
}

impl Options {
    /// The number of leading words that are options or option values.
    fn skipped(&self, words: &[String]) -> usize {
        let mut at = 0;
        while let Some(word) = words.get(at).filter(|word| word.len() > 1 && word.starts_with('-')) {
            at += 1;
            if word == "--" {
                break;
            }
            at += usize::from(self.takes_next(word));
        }
        at
    }

    /// Whether the next word is the value of this option.
    fn takes_next(&self, word: &str) -> bool {
        match word.strip_prefix("--") {
            Some(long) => self.long.contains(&long),
            // In a cluster, the first letter that takes a value takes the rest of the word, or else the next word.
            None => {
                let letters = word.trim_start_matches('-');
                letters.find(|letter| self.short.contains(letter)).is_some_and(|at| at + 1 == letters.len())
            }
        }
    }
}
