//! Decides from a pod's name, annotations and containers whether the plugin redirects the pod, and
//! collects the facts on which the redirect depends. Pure.

pub mod annotation;
pub mod containers;
pub mod facts;
pub mod mesh;
pub mod skip;

use serde::{Deserialize, Serialize};

use skip::SkipReason;

/// Makes an enum of one list, with a word for programs and a text for people for each variant. The words
/// never change their meaning.
macro_rules! reasons {
    ($(#[$attribute:meta])* pub enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident $label:literal $text:literal)*
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$of_variant])* $variant),* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// One word, for metrics and other programs.
            pub fn label(self) -> &'static str {
                match self { $($name::$variant => $label),* }
            }

            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}
pub(crate) use reasons;

/// Whether the plugin redirects a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision<T> {
    Skip(SkipReason),
    /// The pod is meshed. `T` is what is known for its redirect.
    Redirect(T),
}
