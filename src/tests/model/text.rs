//! Texts that are stored once, so that states of the model are small.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(&'static str);

static POOL: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl Text {
    pub fn new(text: &str) -> Text {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pooled_text) = pool.get(text) {
            return Text(pooled_text);
        }
        // The memory is never freed. The model has few different texts, and the test ends soon.
        let pooled_text: &'static str = Box::leak(text.to_owned().into_boxed_str());
        pool.insert(pooled_text);
        Text(pooled_text)
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Short names for what the texts of the model differ by.
        if !self.0.starts_with('{') {
            return f.write_str(self.0);
        }
        let number = |key: &str| self.0.split_once(key)?.1.split(['}', ',']).next().map(str::trim);
        let version = number("\"mtu\":").unwrap_or("-");
        let entry = number("incoming-proxy-port\":").unwrap_or("no");
        write!(f, "<version {version}, {entry} entry>")
    }
}
