//! Port lists and single ports of annotations and of the plugin entry.
//!
//! Upstream drops a bad element with a log line on the node and starts the pod. So does
//! this, but it returns what was dropped, for the pod's owner to be told. With
//! `strict-annotations` the first bad element is an error.

use super::ignored::{Ignored, ONE_PORT};
use super::{Annotations, annotation_error, config_error};
use crate::cni::error::Error;
use crate::ports::{self, BadElement, PortRange};

/// A list as it is configured.
#[derive(Clone, Copy)]
pub(super) enum List<'a> {
    Annotation(&'static str, &'a str),
    Entry(&'static str, &'a [String]),
}

impl List<'_> {
    fn source(self) -> &'static str {
        match self {
            List::Annotation(key, _) | List::Entry(key, _) => key,
        }
    }

    fn read(self) -> (Vec<PortRange>, Vec<BadElement>) {
        match self {
            List::Annotation(_, text) => ports::list(text),
            List::Entry(_, texts) => ports::elements(texts.iter().map(String::as_str)),
        }
    }

    fn error(self, problem: &str) -> Error {
        match self {
            List::Annotation(key, text) => annotation_error(key, text, problem),
            List::Entry(key, _) => config_error(key, problem),
        }
    }
}

/// Reads lists, and collects what is ignored of them.
pub(super) struct Reader {
    strict: bool,
    pub ignored: Vec<Ignored>,
}

impl Reader {
    pub fn new(strict: bool) -> Self {
        Reader {
            strict,
            ignored: Vec::new(),
        }
    }

    /// The ranges of all `lists` together in their order, and `more` after them. It is an
    /// error if nothing is left of lists that have elements: upstream makes a rule
    /// without ports of them, which iptables refuses.
    pub fn ranges(
        &mut self,
        lists: &[List<'_>],
        more: &[PortRange],
    ) -> Result<Vec<PortRange>, Error> {
        let mut all = Vec::new();
        let mut last_bad = None;
        for &list in lists {
            let (ranges, bad) = list.read();
            all.extend(ranges);
            let Some(first) = bad.first() else {
                continue;
            };
            if self.strict {
                let problem = format!("{}; {} is wanted", first.error, ports::GRAMMAR);
                return Err(list.error(&problem));
            }
            last_bad = Some((list, first.error.clone()));
            let texts = bad.into_iter().map(|element| element.text);
            self.ignore(list.source(), texts.collect());
        }
        all.extend(more);
        match last_bad {
            Some((list, error)) if all.is_empty() => {
                let problem = format!(
                    "{error}; no usable element is left; {} is wanted",
                    ports::GRAMMAR
                );
                Err(list.error(&problem))
            }
            _ => Ok(all),
        }
    }

    /// An annotation that is one port. Upstream's plugin does not know these, and its
    /// proxy injector ignores bad ones.
    pub fn port(
        &mut self,
        annotations: &Annotations,
        key: &'static str,
    ) -> Result<Option<u16>, Error> {
        let Some(text) = annotations.get(key) else {
            return Ok(None);
        };
        match text.trim().parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ if self.strict => {
                let problem = format!("{ONE_PORT} is wanted");
                Err(annotation_error(key, text, &problem))
            }
            _ => {
                self.ignore(key, vec![text.clone()]);
                Ok(None)
            }
        }
    }

    fn ignore(&mut self, source: &'static str, elements: Vec<String>) {
        self.ignored.push(Ignored {
            source,
            elements,
            more: 0,
        });
    }
}
