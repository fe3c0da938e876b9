//! Applies the namespace's annotations to a pod that lacks them. Pure.

use super::annotation::{self, Annotations};

/// Returns true if the namespace must be read, because the pod lacks one of
/// [`annotation::inherited_keys`].
///
/// The proxy injector copies the namespace's values to the pods that it injects, but does not
/// replace empty values. So an injected pod can only lack a value that is empty.
pub fn needs_namespace(annotations: &Annotations) -> bool {
    let is_injected = annotation::is_injected(annotations);
    annotation::inherited_keys().any(|key| match annotations.get(key) {
        Some(value) => value.is_empty(),
        None => !is_injected,
    })
}

/// Adds the namespace's annotations that change redirect rules, unless the pod has them.
pub fn inherit(annotations: &mut Annotations, namespace_annotations: Annotations) {
    for (key, value) in redirect_annotations(namespace_annotations) {
        annotations.entry(key).or_insert(value);
    }
}

/// Keeps only the annotations that change redirect rules ([`annotation::TABLE`]). Drops empty
/// values, because an empty value on the pod does not override the namespace's value.
pub fn redirect_annotations(mut annotations: Annotations) -> Annotations {
    annotations
        .retain(|key, value| annotation::redirect_annotation(key).is_some() && !value.is_empty());
    annotations
}
