//! Reads port lists and single ports from annotations and the plugin entry.
//!
//! Upstream drops an invalid element, logs that on the node, and starts the pod. This module
//! drops it too, but also returns it, so that the pod's owner gets an Event. With
//! `strict-annotations`, the first invalid element is an error.

use super::ignored::{Ignored, PORT_GRAMMAR};
use super::section::config_error;
use crate::cni::error::Error;
use crate::pod::annotation::{Annotations, annotation_error};
use crate::quote;
use crate::redirect::ports::{self, InvalidElements, PortRange};

/// A port list as configured, with its key.
#[derive(Clone, Copy)]
pub(super) enum PortList<'a> {
    /// The comma-separated text of an annotation.
    Annotation(&'static str, &'a str),
    /// The elements of a list in the plugin entry.
    Entry(&'static str, &'a [String]),
}

impl<'a> PortList<'a> {
    fn source(self) -> &'static str {
        match self {
            PortList::Annotation(key, _) | PortList::Entry(key, _) => key,
        }
    }

    fn read(self) -> (Vec<PortRange>, InvalidElements<'a>) {
        match self {
            PortList::Annotation(_, text) => ports::list(text),
            PortList::Entry(_, texts) => ports::elements(texts.iter().map(String::as_str)),
        }
    }

    fn error(self, problem: &str) -> Error {
        match self {
            PortList::Annotation(key, text) => annotation_error(key, text, problem),
            PortList::Entry(key, _) => config_error(key, problem),
        }
    }
}

/// Reads port lists and collects their ignored elements.
pub(super) struct PortListReader {
    strict: bool,
    pub ignored: Vec<Ignored>,
}

impl PortListReader {
    pub fn new(strict: bool) -> Self {
        PortListReader { strict, ignored: Vec::new() }
    }

    /// Returns the ranges of all `lists` in order, followed by `more`. Fails if all elements
    /// are invalid and `more` is empty: upstream creates a rule without ports then, which
    /// iptables rejects.
    pub fn ranges(
        &mut self,
        lists: &[PortList<'_>],
        more: &[PortRange],
    ) -> Result<Vec<PortRange>, Error> {
        let mut all = Vec::new();
        let mut last_invalid = None;
        for &list in lists {
            let (ranges, invalid) = list.read();
            all.extend(ranges);
            let Some(first) = invalid.first.first() else {
                continue;
            };
            if self.strict {
                let problem = format!("{}; grammar: {}", first.error, ports::GRAMMAR);
                return Err(list.error(&problem));
            }
            last_invalid = Some((list, first.error));
            self.ignored.push(Ignored::new(list.source(), &invalid));
        }
        all.extend(more);
        match last_invalid {
            Some((list, error)) if all.is_empty() => {
                let problem =
                    format!("{error}; no valid element is left; grammar: {}", ports::GRAMMAR);
                Err(list.error(&problem))
            }
            _ => Ok(all),
        }
    }

    /// Reads an annotation that holds one port. Upstream's plugin does not read such
    /// annotations; upstream's proxy injector ignores invalid values, and a value with blanks is one
    /// (`strconv.ParseInt` in `ApplyAnnotationOverrides` of linkerd2's `pkg/inject/inject.go`).
    pub fn port(
        &mut self,
        annotations: &Annotations,
        key: &'static str,
    ) -> Result<Option<u16>, Error> {
        let Some(text) = annotations.get(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ if self.strict => {
                let problem = format!("expected {PORT_GRAMMAR}");
                Err(annotation_error(key, text, &problem))
            }
            _ => {
                let elements = vec![quote::cut(text)];
                self.ignored.push(Ignored { source: key, elements, more: 0 });
                Ok(None)
            }
        }
    }
}
