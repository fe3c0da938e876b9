//! Facts about a pod: whether its name, annotations or containers exempt the pod from the redirect,
//! and what its redirect depends on. Pure.

pub mod annotation;
mod capabilities;
pub mod container_user;
pub mod containers;
pub mod exposure;
pub mod facts;
pub mod inherited_annotations;
pub mod mesh;
pub mod multus;
pub mod observed;
pub mod skip;

use serde::{Deserialize, Serialize};

use skip::SkipReason;

/// Makes an enum from one list, with a word for programs and a text for people for each variant.
/// The words never change their meaning.
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

            /// A text for logs and reports.
            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}
pub(crate) use reasons;

/// Whether a pod needs a redirect, by its containers or its annotations. The plugin's
/// [verdict](crate::verdict) also follows from the pod's name and the plugin entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision<T> {
    Skip(SkipReason),
    /// The pod is meshed. `T` has the facts on which its redirect depends.
    Redirect(T),
}
