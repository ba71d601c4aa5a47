//! Recognizes command lines that only look at things. They may run before a person has accepted the plan.
//!
//! A line counts only if every program in it is known to read, and nothing is redirected into a file. Like all command
//! rules, this guides a cooperative agent; it is not a security boundary.

use super::command_line::{SimpleCommand, base_name, parse};
use super::shell_tokenizer::Tokenizer;
use super::wrappers::wrapped_command;

/// Programs that only read, whatever their arguments.
const READERS: &[&str] = &[
    "[",
    "basename",
    "cat",
    "cd",
    "cksum",
    "cmp",
    "column",
    "comm",
    "cut",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "expr",
    "false",
    "fgrep",
    "fold",
    "free",
    "grep",
    "head",
    "hexdump",
    "id",
    "jq",
    "ls",
    "lscpu",
    "md5sum",
    "nl",
    "nproc",
    "od",
    "paste",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "seq",
    "sha1sum",
    "sha256sum",
    "stat",
    "strings",
    "tac",
    "tail",
    "test",
    "tr",
    "true",
    "type",
    "uname",
    "wc",
    "which",
];
/// Programs that read unless they get one of these options.
const READERS_EXCEPT: &[(&str, &[&str])] = &[
    ("date", &["-s", "--set"]),
    ("env", &["-S", "--split-string"]),
    ("file", &["-C", "--compile"]),
    ("find", &["-delete", "-exec", "-execdir", "-fls", "-fprint", "-fprint0", "-fprintf", "-ok", "-okdir"]),
    ("rg", &["--pre", "--hostname-bin"]),
    ("sort", &["-o", "--output", "--compress-program"]),
    ("tree", &["-o"]),
];
/// Subcommands of git that only read.
const GIT_READERS: &[&str] = &[
    "blame",
    "cat-file",
    "describe",
    "diff",
    "grep",
    "log",
    "ls-files",
    "ls-tree",
    "rev-list",
    "rev-parse",
    "show",
    "status",
];
/// Options with which these subcommands write files or start programs.
const GIT_REFUSED: &[&str] = &["--output", "--ext-diff", "--open-files-in-pager"];
/// Options of git before its subcommand that change nothing but the directory and the pager.
const GIT_NEUTRAL: &[&str] = &["-C", "-P", "--no-pager"];
/// Shell keywords that a command may follow.
const KEYWORDS: &[&str] = &["if", "then", "else", "elif", "while", "until", "do", "!", "{"];
/// Programs that only start another one, which is judged itself.
const NEUTRAL_WRAPPERS: &[&str] = &["command", "env", "ionice", "nice", "stdbuf", "time", "timeout", "xargs"];
const VERSION_OPTIONS: &[&str] = &["--version", "-V", "-version", "--help"];

/// Whether a command line only looks at things. `false` if that is not certain.
pub(crate) fn only_reads(line: &str) -> bool {
    let Some(parsed) = parse(line) else { return false };
    parsed.outputs.iter().all(|target| is_no_file(target))
        && !parsed.commands.is_empty()
        && parsed.commands.iter().all(is_reader)
        && !changes_settings(line)
}

/// Whether a command in the line is started with settings that may make it start other programs.
fn changes_settings(line: &str) -> bool {
    let mut tokenizer = Tokenizer::new(line);
    let Some(commands) = tokenizer.read() else { return true };
    commands.iter().any(|command| has_settings(&command.words))
        || tokenizer.substitutions.iter().any(|inner| changes_settings(inner))
}

/// Whether a command begins with assignments, as in `GIT_EXTERNAL_DIFF=./x git diff`, or is git with options such as
/// `-c diff.external=./x`.
fn has_settings(words: &[String]) -> bool {
    let Some(start) = words.iter().position(|word| !KEYWORDS.contains(&word.as_str())) else { return false };
    let words = &words[start..];
    is_assignment(&words[0])
        || base_name(&words[0]) == "git" && has_git_settings(&words[1..])
        || wrapped_command(words).is_some_and(|started| has_settings(&started))
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

fn has_git_settings(arguments: &[String]) -> bool {
    let mut rest = arguments.iter();
    while let Some(option) = rest.next().filter(|word| word.starts_with('-')) {
        if !GIT_NEUTRAL.contains(&option.as_str()) && !VERSION_OPTIONS.contains(&option.as_str()) {
            return true;
        }
        if option == "-C" {
            rest.next();
        }
    }
    false
}

/// Whether an output goes nowhere, or to where the command's output goes anyway.
fn is_no_file(target: &str) -> bool {
    let descriptor = target.strip_prefix('&');
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    target == "/dev/null" || descriptor.is_some_and(|text| text == "-" || is_number(text))
}

fn is_reader(command: &SimpleCommand) -> bool {
    let Some((program, arguments)) = command.words.split_first() else { return true };
    // A program of the workspace may have the name of one of the system's.
    let name = match program.rsplit_once('/') {
        Some(("/bin" | "/usr/bin", _)) | None => base_name(program),
        Some(_) => return false,
    };
    let is_given = |option: &&str| arguments.iter().any(|word| has_option(word, option));
    let has_refused = READERS_EXCEPT
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, refused)| refused.iter().any(is_given));
    if command.is_wrapper {
        return NEUTRAL_WRAPPERS.contains(&name) && has_refused != Some(true);
    }
    if let [only] = arguments
        && VERSION_OPTIONS.contains(&only.as_str())
    {
        return true;
    }
    if let Some(has_refused) = has_refused {
        return !has_refused;
    }
    match name {
        "sed" => prints_lines(arguments),
        "git" => {
            arguments.first().is_some_and(|command| {
                GIT_READERS.contains(&command.as_str()) && !(command == "grep" && is_given(&"-O"))
            }) && !GIT_REFUSED.iter().any(is_given)
        }
        // A second file is where `uniq` writes.
        "uniq" => arguments.iter().filter(|word| !word.starts_with('-')).count() <= 1,
        _ => READERS.contains(&name),
    }
}

/// Whether the word may have this option, also among others or with its value, such as `-ro` or `--output=file`.
/// Programs accept abbreviations of long options, such as `--outp`.
fn has_option(word: &str, option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => word.strip_prefix("--").filter(|word| !word.is_empty()).is_some_and(|word| {
            let name = word.split_once('=').map_or(word, |(name, _)| name);
            long.starts_with(name) || name.starts_with(long)
        }),
        None if option.len() == 2 => {
            word.starts_with('-') && !word.starts_with("--") && word.contains(&option[1..])
        }
        None => word == option,
    }
}

/// Whether the arguments make `sed` print ranges of lines, as in `sed -n 10,20p file`.
fn prints_lines(arguments: &[String]) -> bool {
    let [option, script, ..] = arguments else { return false };
    let is_print =
        script.ends_with('p') && script.bytes().all(|byte| byte.is_ascii_digit() || b",$p;".contains(&byte));
    option == "-n" && is_print && arguments[2..].iter().all(|word| !word.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_is_recognized() {
        for line in [
            "wc -l src/*.rs",
            "sed -n '10,20p' a.txt",
            "cat a.txt | head -20 2>/dev/null",
            "ls -la && git log --oneline | head; git -C app status",
            "find . -name '*.py' | xargs wc -l",
            "grep -rn \"TODO\" . 2>&1 | sort | uniq -c",
            "cd app && timeout 5 du -sh .",
            "echo $(cat VERSION)",
            "python3 --version",
            "/usr/bin/stat a",
            "for f in *.log; do tail -1 $f; done",
            "env | sort -rn --key=2 -- a.txt",
            "git --no-pager -C app grep -n a=b; git --version",
            "git log --oneline --format=%h -S'Option'",
            "rg --hidden x=1 src",
        ] {
            assert!(only_reads(line), "{line}");
        }
    }

    #[test]
    fn options_that_start_programs_or_write_wait_for_the_plan() {
        for line in [
            "sort --compress-program=./x a",
            "sort --comp ./x a",
            "sort --outp=f a",
            "sort --output=f a",
            "rg --pre ./x y",
            "rg --pre=./x y",
            "rg --hostname-bin=./x y",
            "git grep -O./x y",
            "git grep -nO./x y",
            "git grep --open-files-in-pager=./x y",
            "git grep --open=./x y",
            "git diff --ext-diff",
            "git log -p --ext",
            "git diff --outp=x",
            "date --se=now",
        ] {
            assert!(!only_reads(line), "{line}");
        }
    }

    #[test]
    fn settings_of_a_command_wait_for_the_plan() {
        for line in [
            "GIT_EXTERNAL_DIFF=./x git diff",
            "A=1 GIT_EXTERNAL_DIFF=./x git diff",
            "if GIT_EXTERNAL_DIFF=./x git diff; then ls; fi",
            "echo $(GIT_EXTERNAL_DIFF=./x git diff)",
            "env GIT_EXTERNAL_DIFF=./x git diff",
            "env -S 'GIT_EXTERNAL_DIFF=./x git diff'",
            "env '-SGIT_EXTERNAL_DIFF=./x git diff'",
            "env --split-string='rm x'",
            "timeout 5 env GIT_EXTERNAL_DIFF=./x git diff",
            "time GIT_EXTERNAL_DIFF=./x git diff",
            "PATH=./bin; ls",
            "git -c diff.external=./x diff",
            "timeout 5 git -C app -c diff.external=./x diff",
            "git --exec-path=./x status",
        ] {
            assert!(!only_reads(line), "{line}");
        }
    }

    #[test]
    fn everything_else_waits_for_the_plan() {
        for line in [
            "echo hi > a.txt",
            "cat a >> b",
            "> a.txt",
            "cat <> a.txt",
            "ls; rm x",
            "echo $(touch x)",
            "echo $(ls > x)",
            "find . -delete",
            "find . -exec rm {} +",
            "sort -o a b",
            "sort -ro a b",
            "uniq a b",
            "sed -i s/a/b/ f",
            "sed -n 'w out' f",
            "git commit -m x",
            "git diff --output=x",
            "./cat a",
            "$PROGRAM a",
            "python3 -c 'print(1)'",
            "bash -c ls",
            "tee log",
            "sudo cat x",
            "ls \"unfinished",
            "",
        ] {
            assert!(!only_reads(line), "{line}");
        }
    }
}
