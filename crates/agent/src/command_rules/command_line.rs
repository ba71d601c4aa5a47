//! Splits a shell command line into its simple commands, precisely enough to compare their first words with rules.
//! [`super::shell_tokenizer`] turns characters into words; [`super::wrappers`] knows the programs that start other
//! programs, and their options.

use super::shell_tokenizer::{Command, Tokenizer};
use super::wrappers;

/// Shell keywords that a command may follow, or that end a compound command.
const KEYWORDS: [&str; 13] =
    ["if", "then", "else", "elif", "while", "until", "do", "!", "{", "}", "fi", "done", "esac"];
/// Shell keywords that are followed by names and values instead of a command.
const LIST_KEYWORDS: [&str; 3] = ["for", "select", "case"];
/// Shells: `-c` takes a command line, and so does their standard input.
const SHELLS: [&str; 5] = ["bash", "sh", "dash", "zsh", "ksh"];
/// Other programs whose `-c` takes a command line.
const COMMAND_LINE_PROGRAMS: [&str; 3] = ["su", "runuser", "script"];
/// Options of `find` that are followed by a command.
const FIND_COMMANDS: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];
/// Maximum nesting depth of `$(...)` and `bash -c`.
const MAX_DEPTH: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SimpleCommand {
    /// The words without quotes, assignments and redirections.
    pub(crate) words: Vec<String>,
    /// Whether the command only starts another one, as `sudo` does. The started command is in the list too.
    pub(crate) is_wrapper: bool,
}

/// What a command line does.
#[derive(Debug, Default)]
pub(crate) struct ParsedLine {
    pub(crate) commands: Vec<SimpleCommand>,
    /// The targets of its output redirections; a file descriptor has a `&` before it.
    pub(crate) outputs: Vec<String>,
}

/// The simple commands and redirections of a line; `None` if the line cannot be parsed.
pub(crate) fn parse(line: &str) -> Option<ParsedLine> {
    let mut found = ParsedLine::default();
    collect(line, 0, &mut found)?;
    Some(found)
}

/// The simple commands of a line; `None` if the line cannot be parsed.
pub(crate) fn simple_commands(line: &str) -> Option<Vec<SimpleCommand>> {
    Some(parse(line)?.commands)
}

/// Whether text that is typed into this command line's process may be read by a shell.
pub(crate) fn starts_shell(line: &str) -> bool {
    let is_shell =
        |command: &SimpleCommand| command.words.first().is_some_and(|word| SHELLS.contains(&base_name(word)));
    simple_commands(line).is_none_or(|commands| commands.iter().any(is_shell))
}

fn collect(line: &str, depth: usize, found: &mut ParsedLine) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut tokenizer = Tokenizer::new(line);
    for command in tokenizer.read()? {
        collect_command(command, depth, found)?;
    }
    for inner in std::mem::take(&mut tokenizer.substitutions) {
        collect(&inner, depth + 1, found)?;
    }
    found.outputs.append(&mut tokenizer.outputs);
    Some(())
}

/// Adds a command and the commands that it starts.
fn collect_command(command: Command, depth: usize, found: &mut ParsedLine) -> Option<()> {
    let plain = wrappers::without_options(strip_wrappers(command.words, &mut found.commands));
    let Some((first, rest)) = plain.split_first() else { return Some(()) };
    let (mut is_wrapper, name) = (false, base_name(first));
    if SHELLS.contains(&name) || COMMAND_LINE_PROGRAMS.contains(&name) {
        match rest.iter().position(|word| is_line_option(word)) {
            Some(flag) if rest.len() > flag + 1 => collect(&rest[flag + 1], depth + 1, found)?,
            _ if SHELLS.contains(&name) => {
                for text in &command.input {
                    collect(text, depth + 1, found)?;
                }
            }
            _ => {}
        }
    } else if name == "eval" {
        collect(&rest.join(" "), depth + 1, found)?;
    } else if name == "watch" {
        is_wrapper = true;
        collect(&wrappers::watch_command(rest).join(" "), depth + 1, found)?;
    } else if is_line_option(first) {
        // For example `flock file -c 'a line'`.
        is_wrapper = true;
        collect(rest.first()?, depth + 1, found)?;
    } else if name == "find" {
        for (at, _) in rest.iter().enumerate().filter(|(_, word)| FIND_COMMANDS.contains(&word.as_str())) {
            let words: Vec<String> = rest[at + 1..]
                .iter()
                .take_while(|word| !matches!(word.as_str(), ";" | "+"))
                .cloned()
                .collect();
            collect_command(Command { words, input: Vec::new() }, depth + 1, found)?;
        }
    }
    found.commands.push(SimpleCommand { words: plain, is_wrapper });
    Some(())
}

/// `-c`, also with other letters before the `c`.
fn is_line_option(word: &str) -> bool {
    word == "--command" || word.starts_with('-') && !word.starts_with("--") && word.ends_with('c')
}

pub(crate) fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Strips assignments, keywords and programs that only start another one; adds those programs to `found`.
fn strip_wrappers(mut words: Vec<String>, found: &mut Vec<SimpleCommand>) -> Vec<String> {
    loop {
        let Some(first) = words.first() else { return words };
        let is_assignment = first.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        });
        if LIST_KEYWORDS.contains(&first.as_str()) {
            return Vec::new();
        }
        if is_assignment || KEYWORDS.contains(&first.as_str()) {
            words.remove(0);
            continue;
        }
        match wrappers::wrapped_command(&words) {
            Some(started) if !started.is_empty() => {
                found.push(SimpleCommand { words, is_wrapper: true });
                words = started;
            }
            _ => return words,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        let commands = simple_commands(line).unwrap();
        commands.iter().filter(|command| !command.is_wrapper).map(|command| command.words.join(" ")).collect()
    }

    #[test]
    fn a_line_is_taken_apart() {
        assert_eq!(words("a b && c 'd e' | f"), ["a b", "c d e", "f"]);
        assert_eq!(words("X=1 env Y=2 make -j4 2>&1 | tee log"), ["make -j4", "tee log"]);
        assert_eq!(words("cat > f <<'E'\nrm -rf /\nE\nls"), ["cat", "ls"]);
        assert_eq!(words("sh -c 'a; b'"), ["a", "b", "sh -c a; b"]);
        assert_eq!(words(""), [""; 0]);
    }

    #[test]
    fn wrapped_commands_are_found() {
        let cases = [
            ("sudo -u root rm -rf /", "rm -rf /"),
            ("sudo -nu root -- rm x", "rm x"),
            ("sudo --user root --chdir=/ A=1 rm x", "rm x"),
            ("timeout -s KILL 5 git push", "git push"),
            ("timeout --kill-after=3 --signal TERM $LIMIT git push", "git push"),
            ("nice -n 5 nohup git push", "git push"),
            ("nice -5 git push", "git push"),
            ("env -i -u HOME -C /tmp A=1 git push", "git push"),
            ("env -S 'A=1 git push --force' origin", "git push --force origin"),
            ("xargs -n 1 -I {} rm {}", "rm {}"),
            ("stdbuf -o L time -f %e rm x", "rm x"),
            ("exec -a other rm x", "rm x"),
            ("busybox rm x", "rm x"),
            ("git -C d push", "git push"),
            ("git -c user.name=x --git-dir .git --no-pager push -f", "git push -f"),
            ("git -C d -p status -s", "git status -s"),
            ("npm --prefix app publish", "npm publish"),
            ("docker -H unix:///x --debug push y", "docker push y"),
        ];
        for (line, plain) in cases {
            assert_eq!(words(line), [plain], "{line}");
        }
        let several = [
            (">/dev/null git push", vec!["git push"]),
            ("</dev/null rm x", vec!["rm x"]),
            ("2>/dev/null rm x &>log 3>&1 >|y", vec!["rm x"]),
            ("ls 2>&1 1>>log -l", vec!["ls -l"]),
            (
                "find . -name '*.o' -exec rm {} + -o -execdir sudo git push \\;",
                vec!["rm {}", "git push", "find . -name *.o -exec rm {} + -o -execdir sudo git push ;"],
            ),
            ("bash <<E\nrm x\nE\nls", vec!["rm x", "bash", "ls"]),
            ("bash -s <<'E' | cat\nrm x\nE", vec!["rm x", "bash -s", "cat"]),
            ("sh <<<'rm x'", vec!["rm x", "sh"]),
            ("cat <<E\n$(rm x)\nE", vec!["cat", "rm x"]),
            ("cat <<'E'\n$(rm x)\nE", vec!["cat"]),
            ("$'rm' x", vec!["rm x"]),
            ("$'\\x72m' $\"y\"", vec!["rm y"]),
            ("flock /tmp/f rm x", vec!["rm x"]),
            ("flock -w 5 /tmp/f -c 'rm x; ls'", vec!["rm x", "ls"]),
            ("watch -n 1 'rm x; ls'", vec!["rm x", "ls"]),
            ("strace -f -o log rm x", vec!["rm x"]),
            ("diff <(rm x) <(ls)", vec!["diff", "rm x", "ls"]),
            ("for f in a b; do ls $f; done", vec!["ls $f"]),
            ("while true; do ls; break; done > log", vec!["true", "ls", "break"]),
            ("case $x in a) ls;; *) rm x;; esac", vec!["ls", "rm x"]),
            ("ls $((1+2)) \"$((3*4))\"", vec!["ls "]),
            ("echo $(( $(rm x) + 1 ))", vec!["echo ", "rm x"]),
            ("echo $((rm x); ls)", vec!["echo ", "rm x", "ls"]),
        ];
        for (line, plain) in several {
            let mut found: Vec<String> =
                words(line).iter().map(|words| words.trim_end().to_owned()).collect();
            let mut wanted: Vec<&str> = plain.iter().map(|words| words.trim_end()).collect();
            found.sort();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{line}");
        }
        assert!(starts_shell("sudo bash -i") && starts_shell("sh") && !starts_shell("cat"));
        // Nothing is started here.
        assert_eq!(words("git --version"), ["git --version"]);
        assert_eq!(words("sudo -v"), ["sudo -v"]);
        assert_eq!(words("timeout"), ["timeout"]);
    }

    proptest! {
        #[test]
        fn no_text_panics_or_hangs(line in ".{0,200}") {
            let _ = simple_commands(&line);
        }
    }
}
