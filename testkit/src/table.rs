//! Tables of test data in YAML. Each row has a name, which says what the row shows.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::chart::yaml;

/// Name of a row. A test that panics before it drops the name prints it.
pub struct RowName(String);

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
pub fn rows<Row: DeserializeOwned>(text: &str) -> impl Iterator<Item = (RowName, Row)> {
    read(yaml(text))
}

/// Returns the rows of one of several tables in `text`.
pub fn rows_of<Row: DeserializeOwned>(
    text: &str,
    table: &str,
) -> impl Iterator<Item = (RowName, Row)> {
    read(yaml(text)[table].take())
}

fn read<Row: DeserializeOwned>(table: Value) -> impl Iterator<Item = (RowName, Row)> {
    let Value::Object(table) = table else { panic!("no mapping of names to rows: {table}") };
    assert!(!table.is_empty());
    table.into_iter().map(|(name, row)| match serde_json::from_value(row) {
        Ok(row) => (RowName(name), row),
        Err(error) => panic!("row \"{name}\": {error}"),
    })
}
