//! Texts that are stored once, so that states of the model are small and quickly compared.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

/// A text of the pool. Two equal texts have the same address.
#[derive(Clone, Copy)]
pub struct Text(&'static str);

static POOL: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl Text {
    pub fn new(text: &str) -> Text {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = pool.get(text) {
            return Text(found);
        }
        // The model has few different texts, and the test ends soon.
        let kept: &'static str = Box::leak(text.to_owned().into_boxed_str());
        pool.insert(kept);
        Text(kept)
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.0
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Text {}

impl Hash for Text {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.as_ptr().hash(hasher);
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> std::cmp::Ordering {
        self.0.cmp(other.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Short names for what the texts of the model differ by.
        if !self.0.starts_with('{') {
            return f.write_str(self.0);
        }
        let number = |key: &str| self.0.split_once(key)?.1.split(['}', ',']).next();
        let version = number("\"mtu\":").unwrap_or("-");
        let entry = number("incoming-proxy-port\":").unwrap_or("no");
        write!(f, "<version {version}, {entry} entry>")
    }
}
