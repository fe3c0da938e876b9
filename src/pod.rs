//! Facts about a pod: whether its name, annotations or containers exempt it from redirection, and
//! the settings that its redirect rules depend on. Pure.

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

/// Defines an enum whose variants each have a label for programs and a text for people. Labels
/// never change their meaning, because metrics and other programs rely on them.
macro_rules! reasons {
    ($(#[$attribute:meta])* pub enum $name:ident {
        $($(#[$variant_attribute:meta])* $variant:ident $label:literal $text:literal)*
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_attribute])* $variant),* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// Returns the label for metrics and other programs.
            pub fn label(self) -> &'static str {
                match self { $($name::$variant => $label),* }
            }

            /// Returns the text for logs and reports.
            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}
pub(crate) use reasons;

/// Whether a pod needs redirect rules, judged only by its containers or annotations. The plugin's
/// [verdict](crate::verdict) also depends on the pod's name and the plugin entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision<T> {
    Skip(SkipReason),
    /// The pod is meshed. `T` holds the facts that its redirect rules depend on.
    Redirect(T),
}
