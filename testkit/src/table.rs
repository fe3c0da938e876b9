//! Tables of test data, in YAML or in Rust. Each row has a name, which says what the row shows.

use std::fmt;
use std::ops::Deref;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::chart::yaml;

/// Name of a row. If a test panics while it holds the name, the name is printed, so that the
/// failure shows the row.
pub struct RowName(String);

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for RowName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for RowName {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the row \"{}\"", self.0);
        }
    }
}

/// Returns the rows of the mapping `text`, in its order.
pub fn rows<Row: DeserializeOwned>(text: &str) -> impl Iterator<Item = (RowName, Row)> + use<Row> {
    read(yaml(text))
}

/// Returns the rows of one of several tables in `text`.
pub fn rows_of<Row: DeserializeOwned>(
    text: &str,
    table: &str,
) -> impl Iterator<Item = (RowName, Row)> + use<Row> {
    read(yaml(text)[table].take())
}

/// Returns rows that are written in Rust.
pub fn named<Row, const COUNT: usize>(
    rows: [(&str, Row); COUNT],
) -> impl Iterator<Item = (RowName, Row)> + use<Row, COUNT> {
    rows.map(|(name, row)| (name.to_owned(), row))
        .into_iter()
        .map(|(name, row)| (RowName(name), row))
}

fn read<Row: DeserializeOwned>(table: Value) -> impl Iterator<Item = (RowName, Row)> + use<Row> {
    let Value::Object(table) = table else { panic!("no mapping of names to rows: {table}") };
    assert!(!table.is_empty());
    table.into_iter().map(|(name, row)| match serde_json::from_value(row) {
        Ok(row) => (RowName(name), row),
        Err(error) => panic!("row \"{name}\": {error}"),
    })
}
