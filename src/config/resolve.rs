//! Checks plugin entry, annotations and proxy container, and combines them into a [`Redirect`].
//!
//! Upstream drops an invalid element of a port list, logs that on the node, and starts the pod. So does
//! this module, and it returns the element, so that the pod's owner gets an Event. With
//! `strict-annotations`, the first invalid element is an error.

use super::ignored_ports::{INBOUND_KEY, Ignored, OUTBOUND_KEY, PORT_GRAMMAR};
use super::section::config_error;
use super::{Config, ResolvedRedirect};
use crate::cni::Error;
use crate::pod::annotation::{self, annotation_error};
use crate::pod::containers;
use crate::pod::facts::PodFacts;
use crate::quote::{self, quote};
use crate::redirect::ports::{self, InvalidElement, PortRange};
use crate::redirect::{Ipv6, Redirect, Subnet};

/// Annotations with subnets that are not redirected, and the keys of the plugin entry that they
/// replace. The first two are of inbound connections, the last is of outbound ones.
pub const SUBNETS: [(&str, &str); 3] = [
    (annotation::SKIP_SUBNETS, "subnets-to-ignore"),
    (annotation::SKIP_INBOUND_SUBNETS, "inbound-subnets-to-ignore"),
    (annotation::SKIP_OUTBOUND_SUBNETS, "outbound-subnets-to-ignore"),
];

impl Config {
    /// The proxy container wins over annotations, and those win over the plugin entry. As in upstream,
    /// annotated outbound ports, subnets, UID and GID replace the value of the plugin entry, and annotated
    /// inbound ports are added to it.
    pub fn resolve(&self, pod: &PodFacts) -> Result<ResolvedRedirect, Error> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let mut resolver = Resolver { config: self, pod, ignored: Vec::new() };
        let [any_subnets, inbound_subnets, outbound_subnets] =
            [0, 1, 2].map(|index| self.subnets(pod, index));
        let skip_outbound = resolver.ranges(&[self.outbound_ports(pod)], &pod.api_ports)?;
        let mut skip_inbound = resolver.ranges(&self.inbound_ports(pod), &[])?;
        for (explicit, key) in [
            (pod.proxy.admin_port, annotation::ADMIN_PORT),
            (pod.proxy.control_port, annotation::CONTROL_PORT),
        ] {
            skip_inbound.extend(resolver.port(explicit, key)?.map(PortRange::from));
        }
        let [proxy_uid, proxy_gid] = self.proxy_user(pod)?;
        let inbound = ("incoming-proxy-port", self.incoming_proxy_port);
        let outbound = ("outgoing-proxy-port", self.outgoing_proxy_port);
        let [stated_in, stated_out] = [pod.proxy.inbound_port, pod.proxy.outbound_port];
        let redirect = Redirect {
            inbound_port: resolver.proxy_port(stated_in, annotation::INBOUND_PORT, inbound)?,
            outbound_port: resolver.proxy_port(stated_out, annotation::OUTBOUND_PORT, outbound)?,
            proxy_uid,
            proxy_gid,
            ports_to_redirect: redirected_ports(&self.ports_to_redirect)?,
            skip_inbound: ports::distinct(&skip_inbound),
            skip_outbound: ports::distinct(&skip_outbound),
            skip_subnets: [any_subnets?.1, inbound_subnets?.1].concat(),
            skip_outbound_subnets: outbound_subnets?.1,
            is_guessed: false,
        };
        Ok(ResolvedRedirect {
            ipv6: match self.ipv6 {
                Ipv6::Auto if pod.proxy.is_ipv4_only => Ipv6::No,
                ipv6 => ipv6,
            },
            ignored: resolver.ignored,
            blocked_init_containers: containers::blocked(&pod.early_containers, &redirect),
            exempt_containers: containers::exempt(&pod.app_containers, &redirect),
            redirect,
        })
    }

    /// [`Config::resolve`] without the ignored elements.
    pub fn redirect(&self, pod: &PodFacts) -> Result<Redirect, Error> {
        self.resolve(pod).map(|resolved| resolved.redirect)
    }

    /// Returns the inbound ports of the plugin entry (the chart includes the proxy's admin and control
    /// port), and the annotated ones, which are added to them.
    pub fn inbound_ports<'a>(&'a self, pod: &'a PodFacts) -> [List<'a>; 2] {
        let configured = &self.inbound_ports_to_ignore[..];
        [
            List { key: INBOUND_KEY, annotation: None, configured },
            List::new(pod, annotation::SKIP_INBOUND_PORTS, INBOUND_KEY, &[]),
        ]
    }

    /// Returns the annotated outbound ports, or else those of the plugin entry.
    pub fn outbound_ports<'a>(&'a self, pod: &'a PodFacts) -> List<'a> {
        let configured = &self.outbound_ports_to_ignore;
        List::new(pod, annotation::SKIP_OUTBOUND_PORTS, OUTBOUND_KEY, configured)
    }

    /// Returns the annotated subnets, or else those of the plugin entry, and their annotation or key.
    /// `index` is that of [`SUBNETS`].
    pub fn subnets(
        &self,
        pod: &PodFacts,
        index: usize,
    ) -> Result<(&'static str, Vec<Subnet>), Error> {
        let (annotation, key) = SUBNETS[index];
        let list = List::new(pod, annotation, key, &self.subnets_to_ignore[index]);
        let texts = list.elements().map(str::trim).filter(|text| !text.is_empty());
        let subnet = |text| {
            Subnet::parse(text).ok_or_else(|| {
                let wanted = "expected a CIDR such as 10.0.0.0/8 or fd00::/8";
                list.error(&format!("{} is not a subnet: {wanted}", quote(text)))
            })
        };
        Ok((list.key, texts.map(subnet).collect::<Result<_, _>>()?))
    }
}

/// Combines the values for one pod, and collects the ignored elements.
struct Resolver<'a> {
    config: &'a Config,
    pod: &'a PodFacts,
    ignored: Vec<Ignored>,
}

/// A list of ports or subnets: an annotation, or else elements of the plugin entry.
#[derive(Clone, Copy)]
pub struct List<'a> {
    /// Name of the annotation, or key of the plugin entry.
    pub key: &'static str,
    annotation: Option<&'a String>,
    configured: &'a [String],
}

impl<'a> List<'a> {
    fn new(
        pod: &'a PodFacts,
        annotation: &'static str,
        key: &'static str,
        configured: &'a [String],
    ) -> Self {
        match pod.annotations.get(annotation) {
            None => List { key, annotation: None, configured },
            text => List { key: annotation, annotation: text, configured: &[] },
        }
    }

    fn elements(self) -> impl Iterator<Item = &'a str> {
        let annotated = self.annotation.into_iter().flat_map(|text| text.split(','));
        annotated.chain(self.configured.iter().map(String::as_str))
    }

    pub fn ports(self) -> impl Iterator<Item = Result<PortRange, InvalidElement<'a>>> {
        self.elements().map(PortRange::parse)
    }

    fn error(&self, problem: &str) -> Error {
        match self.annotation {
            Some(text) => annotation_error(self.key, text, problem),
            None => config_error(self.key, problem),
        }
    }
}

impl Resolver<'_> {
    /// Returns the ranges of all `lists` in order, followed by `more`. Fails if all elements are invalid and
    /// `more` is empty: upstream creates a rule without ports then, which iptables rejects.
    fn ranges(&mut self, lists: &[List<'_>], more: &[PortRange]) -> Result<Vec<PortRange>, Error> {
        let (mut all, mut last_invalid) = (Vec::new(), None);
        for list in lists {
            let mut ignored = Ignored { source: list.key, elements: Vec::new(), more: 0 };
            for element in list.ports() {
                match element {
                    Ok(range) => all.push(range),
                    Err(element) if self.config.strict_annotations => {
                        return Err(list.error(&format!("{element}; grammar: {}", ports::GRAMMAR)));
                    }
                    Err(element) => {
                        ignored.add(element.text);
                        last_invalid = Some((list, element));
                    }
                }
            }
            self.ignored.extend(Some(ignored).filter(|ignored| !ignored.elements.is_empty()));
        }
        all.extend(more);
        match last_invalid {
            Some((list, element)) if all.is_empty() => Err(list.error(&format!(
                "{element}; no valid element is left; grammar: {}",
                ports::GRAMMAR
            ))),
            _ => Ok(all),
        }
    }

    /// Returns a port of the proxy: `explicit` from its container, else the annotation `key`. Upstream's
    /// plugin does not read such annotations; upstream's proxy injector ignores invalid values, and a
    /// value with blanks is one (`strconv.ParseInt` in `ApplyAnnotationOverrides` of linkerd2's
    /// `pkg/inject/inject.go`).
    fn port(&mut self, explicit: Option<u16>, key: &'static str) -> Result<Option<u16>, Error> {
        let Some(text) = self.pod.annotations.get(key).filter(|_| explicit.is_none()) else {
            return Ok(explicit);
        };
        match text.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ if self.config.strict_annotations => {
                Err(annotation_error(key, text, &format!("expected {PORT_GRAMMAR}")))
            }
            _ => {
                let elements = vec![quote::cut(text)];
                self.ignored.push(Ignored { source: key, elements, more: 0 });
                Ok(None)
            }
        }
    }

    /// Like [`Resolver::port`], with `number` as default, which the plugin entry has as `key`.
    fn proxy_port(
        &mut self,
        explicit: Option<u16>,
        annotation: &'static str,
        (key, number): (&str, i64),
    ) -> Result<u16, Error> {
        let known = self.port(explicit, annotation)?;
        known.or_else(|| u16::try_from(number).ok().filter(|port| *port > 0)).ok_or_else(|| {
            let problem = format!("{number} is not a port of the proxy: expected {PORT_GRAMMAR}");
            config_error(key, &problem)
        })
    }
}

fn redirected_ports(texts: &[String]) -> Result<Vec<u16>, Error> {
    let port = |text: &String| {
        text.trim().parse().map_err(|_| {
            let problem =
                format!("{} is not a port: expected a number from 0 to 65535", quote(text));
            config_error("ports-to-redirect", &problem)
        })
    };
    texts.iter().map(port).collect()
}
