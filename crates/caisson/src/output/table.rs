//! Formats tables: columns as wide as needed, the last one cut at the terminal's width.

use std::io::IsTerminal;

use super::terminal::{self, Colours, strip_control_characters};

/// The minimum width of the last column.
const MIN_LAST_WIDTH: usize = 10;

/// Rows below a header.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// A text and its ANSI colour code.
pub(crate) struct Cell {
    text: String,
    colour: Option<&'static str>,
}

impl Cell {
    pub(crate) fn coloured(text: &str, colour: &'static str) -> Self {
        Self { text: strip_control_characters(text), colour: Some(colour) }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: strip_control_characters(text.as_ref()), colour: None }
    }
}

impl Table {
    /// An empty table.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// The lines, cut to the terminal's width if there is one.
    pub(crate) fn show(&self) -> String {
        let width = std::io::stdout().is_terminal().then(|| usize::from(terminal::size().columns));
        self.lines(Colours::of_output(), width)
    }

    fn lines(&self, colours: Colours, width: Option<usize>) -> String {
        let widths: Vec<usize> = (0..self.head.len()).map(|column| self.width_of(column)).collect();
        let head: Vec<Cell> = self.head.iter().map(|title| Cell::coloured(title, "1")).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            let mut used = 0;
            for (index, cell) in row.iter().enumerate() {
                let is_last = index + 1 == row.len();
                let shown = match width {
                    Some(width) if is_last => cut(&cell.text, width.saturating_sub(used).max(MIN_LAST_WIDTH)),
                    _ => cell.text.clone(),
                };
                line += &cell.colour.map_or_else(|| shown.clone(), |colour| colours.paint(colour, &shown));
                if !is_last {
                    line += &" ".repeat(widths[index] - shown.chars().count() + 2);
                    used += widths[index] + 2;
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    fn width_of(&self, column: usize) -> usize {
        let rows = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
        rows.chain([self.head[column].len()]).max().unwrap_or(0)
    }
}

/// A job's state in its colour.
pub(crate) fn state_cell(state: &str) -> Cell {
    let colour = match state {
        "complete" | "succeeded" => "32",
        "failed" | "interrupted" => "31",
        "cancelled" | "paused" => "33",
        "running" | "starting" | "collecting" => "36",
        _ => "2",
    };
    Cell::coloured(state, colour)
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["ID", "STATE", "NAME"]);
        table.add(vec!["1".into(), Cell::coloured("complete", "32"), "a rather long name".into()]);
        table.add(vec!["22".into(), "failed".into(), "".into()]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let expected = "ID  STATE     NAME\n1   complete  a rather long name\n22  failed\n";
        assert_eq!(table().lines(Colours::Off, None), expected);
    }

    #[test]
    fn the_last_column_ends_where_the_terminal_ends() {
        let shown = table().lines(Colours::Off, Some(26));
        assert!(shown.contains("1   complete  a rather lo…\n"), "{shown}");
    }

    #[test]
    fn colours_keep_columns_aligned_and_cells_are_sanitized() {
        let shown = table().lines(Colours::On, None);
        assert!(shown.contains("\x1b[32mcomplete\x1b[0m  a rather"), "{shown}");
        assert_eq!(Cell::from("a\x1b[2Jb\n").text, "a[2Jb");
    }
}
