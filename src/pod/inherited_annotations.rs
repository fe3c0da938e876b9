//! Annotations of the namespace that apply to a pod which lacks them. Pure.

use super::annotation::{self, Annotations};

/// Returns whether the namespace's annotations may apply to a pod with these annotations: the pod
/// lacks one of [`annotation::inherited_keys`]. The proxy injector copies the namespace's values to
/// its pods, but does not replace an empty value. So on a pod with its mark, only an empty value
/// counts as missing.
pub fn needs_namespace(annotations: &Annotations) -> bool {
    let is_injected = annotation::is_injected(annotations);
    annotation::inherited_keys().any(|key| match annotations.get(key) {
        Some(value) => value.is_empty(),
        None => !is_injected,
    })
}

/// Adds the namespace's annotations that change redirect rules, where the pod has none.
pub fn inherit(annotations: &mut Annotations, of_namespace: Annotations) {
    for (key, value) in redirect_annotations(of_namespace) {
        annotations.entry(key).or_insert(value);
    }
}

/// Keeps the annotations that change redirect rules ([`annotation::TABLE`]), without empty values:
/// an empty value on the pod does not override the namespace's value.
pub fn redirect_annotations(mut annotations: Annotations) -> Annotations {
    annotations
        .retain(|key, value| annotation::redirect_annotation(key).is_some() && !value.is_empty());
    annotations
}
