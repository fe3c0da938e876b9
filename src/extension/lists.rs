//! Lists of objects, read in parts.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use super::kubectl::{Api, Error, get};
use super::objects::List;

/// Number of objects in one part of a list.
const PAGE: usize = 500;
/// Largest number of parts of a list that are read.
const PAGE_LIMIT: usize = 100;

/// Reads all parts of a list.
pub fn list<T: DeserializeOwned>(api: &dyn Api, path: &str, query: &str) -> Result<Vec<T>, String> {
    try_list(api, path, query).map_err(|error| error.to_string())
}

/// Reads all parts of a list, for a caller that tells errors apart.
pub fn try_list<T: DeserializeOwned>(
    api: &dyn Api,
    path: &str,
    query: &str,
) -> Result<Vec<T>, Error> {
    let mut items = Vec::new();
    let mut next = String::new();
    for _ in 0..PAGE_LIMIT {
        let from = match next.is_empty() {
            true => String::new(),
            false => format!("&continue={}", utf8_percent_encode(&next, NON_ALPHANUMERIC)),
        };
        let path = format!("{path}?limit={PAGE}&{query}{from}");
        let part: List<T> = get(api, &path)?;
        items.extend(part.items);
        next = part.metadata.continue_token;
        if next.is_empty() {
            break;
        }
    }
    Ok(items)
}
