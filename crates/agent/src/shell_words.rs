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
enum Next {
    /// A word of the command.
    Own,
    /// The file of a redirection.
    File,
    /// The text of a here-string.
    Input,
}

/// A here-document that starts on the next line.
struct HereEnd {
    word: String,
    /// Whether the shell expands `$(...)` in it.
    is_open: bool,
    /// Index of the command that reads it.
    command: usize,
}

/// The tokenizer.
pub(crate) struct Reader {
    characters: Vec<char>,
    at: usize,
    /// The command lines inside `$(...)` and backquotes.
    pub(crate) inner: Vec<String>,
    here: Vec<HereEnd>,
    commands: Vec<Command>,
    command: Command,
    word: Option<String>,
    next: Next,
    /// The number of open parentheses.
    brackets: usize,
}

impl Reader {
    pub(crate) fn new(line: &str) -> Self {
        Self {
            characters: line.chars().collect(),
            at: 0,
            inner: Vec::new(),
            here: Vec::new(),
            commands: Vec::new(),
            command: Command::default(),
            word: None,
            next: Next::Own,
            brackets: 0,
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
                    self.inner.push(text);
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
        self.keep_command();
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
        match std::mem::replace(&mut self.next, Next::Own) {
            Next::Own => self.command.words.push(word),
            Next::File => {}
            Next::Input => self.command.input.push(word),
        }
    }

    fn keep_command(&mut self) {
        self.next = Next::Own;
        let command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            self.commands.push(command);
        }
    }

    fn end_command(&mut self, character: char) {
        self.end_word();
        match character {
            '(' => self.brackets += 1,
            // Text before an unmatched closing parenthesis is a pattern of `case`.
            ')' if self.brackets == 0 => self.command.words.clear(),
            ')' => self.brackets -= 1,
            _ => {}
        }
        self.keep_command();
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
                self.next = Next::Input;
            } else {
                self.here_word();
            }
            return;
        }
        if self.peek(0).is_some_and(|c| matches!(c, '>' | '<' | '&' | '|')) {
            self.at += 1;
        }
        self.next = Next::File;
    }

    fn dollar(&mut self) -> Option<()> {
        match self.peek(0) {
            Some('(') => {
                self.at += 1;
                let text = self.until_bracket()?;
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
        if is_sum(&text) {
            self.inner_of(&text);
        } else {
            self.inner.push(text);
        }
    }

    /// Finds the commands that run inside text that is not itself a command.
    fn inner_of(&mut self, text: &str) {
        let mut reader = Self::new(&(text.replace(['"', '\\'], "") + "\""));
        if reader.double_quoted().is_none() {
            // If the text cannot be parsed, treat it as a command line.
            return self.inner.push(text.to_owned());
        }
        self.inner.append(&mut reader.inner);
    }

    fn until(&mut self, end: char) -> Option<String> {
        let start = self.at;
        while self.peek(0)? != end {
            self.at += 1;
        }
        self.at += 1;
        Some(self.characters[start..self.at - 1].iter().collect())
    }

    fn until_bracket(&mut self) -> Option<String> {
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
                    self.inner.push(inner);
                }
                '$' if self.peek(0) == Some('(') => {
                    self.at += 1;
                    let inner = self.until_bracket()?;
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
                    let sort = self.peek(0)?;
                    self.at += 1;
                    text.extend(match sort {
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

    fn here_word(&mut self) {
        while self.peek(0).is_some_and(|c| c == '-' || c == ' ') {
            self.at += 1;
        }
        let (mut word, mut is_open) = (String::new(), true);
        while let Some(character) = self.peek(0).filter(|c| !c.is_whitespace() && !";|&)".contains(*c)) {
            self.at += 1;
            if "'\"\\".contains(character) {
                is_open = false;
            } else {
                word.push(character);
            }
        }
        self.here.push(HereEnd { word, is_open, command: self.commands.len() });
    }

    fn read_here_documents(&mut self) {
        for end in std::mem::take(&mut self.here) {
            let mut text = String::new();
            while self.at < self.characters.len() {
                let line: String = self.characters[self.at..].iter().take_while(|c| **c != '\n').collect();
                self.at += line.chars().count() + 1;
                if line.trim_start_matches('\t') == end.word {
                    break;
                }
                text += &line;
                text.push('\n');
            }
            if end.is_open {
                self.inner_of(&text);
            }
            if let Some(command) = self.commands.get_mut(end.command) {
                command.input.push(text);
            }
        }
    }
}

/// Whether the content of `$(...)` is parenthesized as a whole.
fn is_sum(text: &str) -> bool {
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
