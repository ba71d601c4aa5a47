//! The settings that a configuration file contains, each with its line.

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::example::{KnownSetting, is_open};

/// A setting in the file.
#[derive(Clone)]
pub(crate) struct FileSetting {
    pub(crate) key: String,
    /// The path in the file's tables.
    path: Vec<String>,
    /// The text of the value.
    pub(crate) text: String,
    value: Value,
    pub(crate) line: usize,
}

impl FileSetting {
    /// The setting's section.
    pub(crate) fn section(&self) -> &str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

/// Finds the settings in a file.
pub(crate) struct Reader<'a> {
    pub(crate) text: &'a str,
    pub(crate) known: &'a [KnownSetting],
}

impl Reader<'_> {
    /// Collects the settings of a table and of its subtables.
    pub(crate) fn collect(
        &self,
        spans: &DeTable<'_>,
        values: &Table,
        above: &[String],
        written: &mut Vec<FileSetting>,
    ) {
        for (key, span) in spans {
            let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
            let path: Vec<String> = above.iter().cloned().chain([key.get_ref().to_string()]).collect();
            let mut name = path.join(".");
            let text = self.text.get(span.span()).unwrap_or_default();
            match (span.get_ref(), value) {
                // A section, not a value in inline form such as `[egress.default]`.
                (DeValue::Table(inner), Value::Table(values))
                    if !text.starts_with('{') && !is_open(&name) && !self.is_known(&name) =>
                {
                    self.collect(inner, values, &path, written);
                    continue;
                }
                // `model = "name"` is short for a section with only that name.
                (DeValue::String(_), _) if name == "model" => name = "model.name".into(),
                _ => {}
            }
            let is_section = value.is_table() && !text.starts_with('{');
            written.push(FileSetting {
                text: if is_section { value.to_string() } else { text.to_owned() },
                line: line_of(self.text, key.span().start),
                key: name,
                path,
                value: value.clone(),
            });
        }
    }

    fn is_known(&self, key: &str) -> bool {
        self.known.iter().any(|known| known.key == key)
    }
}

pub(crate) fn line_of(text: &str, position: usize) -> usize {
    text.bytes().take(position).filter(|byte| *byte == b'\n').count() + 1
}

/// A configuration with only these settings.
pub(crate) fn table_of<'a>(settings: impl IntoIterator<Item = &'a FileSetting>) -> Table {
    let mut whole = Table::new();
    for setting in settings {
        let Some((last, above)) = setting.path.split_last() else { continue };
        let mut table = Some(&mut whole);
        for part in above {
            let inner = table.and_then(|table| {
                table.entry(part.clone()).or_insert_with(|| Value::Table(Table::new())).as_table_mut()
            });
            table = inner;
        }
        if let Some(table) = table {
            table.insert(last.clone(), setting.value.clone());
        }
    }
    whole
}
