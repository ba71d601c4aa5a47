//! Tokenizes a shell command line: quotes, redirections, here-documents, and the command lines inside `$(...)` and
//! backquotes.

/// A command as written.
#[derive(Debug, Default)]
pub(crate) struct Command {
    /// The words without quotes and redirections.
    pub(crate) words: Vec<String>,
    /// The contents of its here-documents and here-strings.
    pub(crate) input: Vec<String>,
}

/// The role of the next word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordRole {
    /// A word of the command.
    CommandWord,
    /// The file that a command reads.
    InputTarget,
    /// The file that a command writes.
    OutputTarget,
    /// The file descriptor that a command's output goes to.
    OutputDescriptor,
    /// The text of a here-string.
    HereString,
}

/// A here-document that starts on the next line.
struct HereDocument {
    /// The line that ends it.
    delimiter: String,
    /// Whether the shell expands `$(...)` in it.
    is_expanded: bool,
    /// Index of the command that reads it.
    command: usize,
}

pub(crate) struct Tokenizer {
    characters: Vec<char>,
    at: usize,
    /// The command lines inside `$(...)` and backquotes.
    pub(crate) substitutions: Vec<String>,
    /// The targets of output redirections; a file descriptor has a `&` before it.
    pub(crate) outputs: Vec<String>,
    here_documents: Vec<HereDocument>,
    commands: Vec<Command>,
    command: Command,
    word: Option<String>,
    next_word: WordRole,
    open_parentheses: usize,
}

impl Tokenizer {
    pub(crate) fn new(line: &str) -> Self {
        Self {
            characters: line.chars().collect(),
            at: 0,
            substitutions: Vec::new(),
            outputs: Vec::new(),
            here_documents: Vec::new(),
            commands: Vec::new(),
            command: Command::default(),
            word: None,
            next_word: WordRole::CommandWord,
            open_parentheses: 0,
        }
    }

    /// The commands, in order; `None` if a quote or parenthesis is not closed.
    pub(crate) fn read(&mut self) -> Option<Vec<Command>> {
        while let Some(character) = self.peek(0) {
            self.at += 1;
            match character {
                '\'' => {
                    let text = self.until('\'')?;
                    self.push(&text);
                }
                '"' => {
                    let text = self.double_quoted()?;
                    self.push(&text);
                }
                '\\' => {
                    let next = self.peek(0)?;
                    self.at += 1;
                    if next != '\n' {
                        self.push(next.encode_utf8(&mut [0; 4]));
                    }
                }
                '`' => {
                    let text = self.until('`')?;
                    self.substitutions.push(text);
                    self.push("");
                }
                '$' => self.dollar()?,
                '#' if self.word.is_none() => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '<' | '>' => self.redirection(character),
                '&' if self.peek(0) == Some('>') => self.end_word(),
                '\n' | ';' | '|' | '&' | '(' | ')' => self.end_command(character),
                c if c.is_whitespace() => self.end_word(),
                c => self.push(c.encode_utf8(&mut [0; 4])),
            }
        }
        self.end_word();
        self.finish_command();
        Some(std::mem::take(&mut self.commands))
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.at + ahead).copied()
    }

    fn push(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match std::mem::replace(&mut self.next_word, WordRole::CommandWord) {
            WordRole::CommandWord => self.command.words.push(word),
            WordRole::InputTarget => {}
            WordRole::OutputTarget => self.outputs.push(word),
            WordRole::OutputDescriptor => self.outputs.push(format!("&{word}")),
            WordRole::HereString => self.command.input.push(word),
        }
    }

    fn finish_command(&mut self) {
        self.next_word = WordRole::CommandWord;
        let command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            self.commands.push(command);
        }
    }

    fn end_command(&mut self, character: char) {
        self.end_word();
        match character {
            '(' => self.open_parentheses += 1,
            // Text before an unmatched closing parenthesis is a pattern of `case`.
            ')' if self.open_parentheses == 0 => self.command.words.clear(),
            ')' => self.open_parentheses -= 1,
            _ => {}
        }
        self.finish_command();
        if character == '\n' {
            self.read_here_documents();
        }
    }

    /// `>`, `2>>`, `<&`, `<<word`, `<<<`. The next word is not part of the command.
    fn redirection(&mut self, character: char) {
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        // `<(...)` and `>(...)` are words that contain commands.
        if self.peek(0) == Some('(') {
            return;
        }
        if character == '<' && self.peek(0) == Some('<') {
            self.at += 1;
            if self.peek(0) == Some('<') {
                self.at += 1;
                self.next_word = WordRole::HereString;
            } else {
                self.read_here_delimiter();
            }
            return;
        }
        let modifier = self.peek(0).filter(|c| matches!(c, '>' | '<' | '&' | '|'));
        self.at += usize::from(modifier.is_some());
        self.next_word = match (character, modifier) {
            ('>', Some('&')) => WordRole::OutputDescriptor,
            // `<>` opens a file for reading and writing.
            ('>', _) | (_, Some('>')) => WordRole::OutputTarget,
            _ => WordRole::InputTarget,
        };
    }

    fn dollar(&mut self) -> Option<()> {
        match self.peek(0) {
            Some('(') => {
                self.at += 1;
                let text = self.until_closing_parenthesis()?;
                self.substitution(text);
                self.push("");
            }
            Some('\'') => {
                self.at += 1;
                let text = self.escaped()?;
                self.push(&text);
            }
            // `$"..."` is a translated string; otherwise it equals `"..."`.
            Some('"') => {}
            _ => self.push("$"),
        }
        Some(())
    }

    /// `$(...)` is a command line. `$((...))` is an arithmetic expression, which may contain command lines.
    fn substitution(&mut self, text: String) {
        if is_arithmetic(&text) {
            self.collect_substitutions(&text);
        } else {
            self.substitutions.push(text);
        }
    }

    /// Finds the commands that run inside text that is not itself a command.
    fn collect_substitutions(&mut self, text: &str) {
        let mut tokenizer = Self::new(&(text.replace(['"', '\\'], "") + "\""));
        if tokenizer.double_quoted().is_none() {
            // If the text cannot be parsed, treat it as a command line.
            return self.substitutions.push(text.to_owned());
        }
        self.substitutions.append(&mut tokenizer.substitutions);
    }

    fn until(&mut self, end: char) -> Option<String> {
        let start = self.at;
        while self.peek(0)? != end {
            self.at += 1;
        }
        self.at += 1;
        Some(self.characters[start..self.at - 1].iter().collect())
    }

    fn until_closing_parenthesis(&mut self) -> Option<String> {
        let start = self.at;
        let mut depth = 1;
        while depth > 0 {
            match self.peek(0)? {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
        Some(self.characters[start..self.at - 1].iter().collect())
    }

    fn double_quoted(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let character = self.peek(0)?;
            self.at += 1;
            match character {
                '"' => return Some(text),
                '\\' => {
                    text.push(self.peek(0)?);
                    self.at += 1;
                }
                '`' => {
                    let inner = self.until('`')?;
                    self.substitutions.push(inner);
                }
                '$' if self.peek(0) == Some('(') => {
                    self.at += 1;
                    let inner = self.until_closing_parenthesis()?;
                    self.substitution(inner);
                }
                other => text.push(other),
            }
        }
    }

    /// The rest of `$'...'`, in which characters may be given by number.
    fn escaped(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let character = self.peek(0)?;
            self.at += 1;
            match character {
                '\'' => return Some(text),
                '\\' => {
                    let escape = self.peek(0)?;
                    self.at += 1;
                    text.extend(match escape {
                        'n' => Some('\n'),
                        't' => Some('\t'),
                        'r' => Some('\r'),
                        'x' => self.number(16, 2),
                        'u' => self.number(16, 4),
                        'U' => self.number(16, 8),
                        '0'..='7' => {
                            self.at -= 1;
                            self.number(8, 3)
                        }
                        other => Some(other),
                    });
                }
                other => text.push(other),
            }
        }
    }

    fn number(&mut self, radix: u32, most: usize) -> Option<char> {
        let digits: String =
            self.characters[self.at..].iter().take(most).take_while(|c| c.is_digit(radix)).collect();
        self.at += digits.len();
        u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32)
    }

    fn read_here_delimiter(&mut self) {
        while self.peek(0).is_some_and(|c| c == '-' || c == ' ') {
            self.at += 1;
        }
        let (mut delimiter, mut is_expanded) = (String::new(), true);
        while let Some(character) = self.peek(0).filter(|c| !c.is_whitespace() && !";|&)".contains(*c)) {
            self.at += 1;
            if "'\"\\".contains(character) {
                is_expanded = false;
            } else {
                delimiter.push(character);
            }
        }
        self.here_documents.push(HereDocument { delimiter, is_expanded, command: self.commands.len() });
    }

    fn read_here_documents(&mut self) {
        for document in std::mem::take(&mut self.here_documents) {
            let mut text = String::new();
            while self.at < self.characters.len() {
                let line: String = self.characters[self.at..].iter().take_while(|c| **c != '\n').collect();
                self.at += line.chars().count() + 1;
                if line.trim_start_matches('\t') == document.delimiter {
                    break;
                }
                text += &line;
                text.push('\n');
            }
            if document.is_expanded {
                self.collect_substitutions(&text);
            }
            if let Some(command) = self.commands.get_mut(document.command) {
                command.input.push(text);
            }
        }
    }
}

/// Whether the content of `$(...)` is parenthesized as a whole.
fn is_arithmetic(text: &str) -> bool {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at > 0 && at + character.len_utf8() == text.len();
        }
    }
    false
}
