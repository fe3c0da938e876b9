//! The responses of an API server to GET requests, from objects in memory.
//!
//! It knows some resources, selectors and parameters. It rejects any other request, so that no test
//! passes because what was asked did not matter.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::list_query::ListQuery;

/// Objects, lists and other responses by path, without query. A text is a body, a number the status
/// of an error. A list has the objects that also exist at paths of their own, and those of a
/// namespace are in the list of all namespaces.
pub type Responses = BTreeMap<String, Value>;

/// Why there is no object.
#[derive(Debug)]
pub enum Refusal {
    /// As the API server responds.
    Status { code: u16, reason: &'static str },
    /// This server does not know the request.
    NotKnown(String),
}

/// The resources, by the path of their API group.
struct Group {
    path: &'static str,
    in_namespaces: &'static [&'static str],
    in_cluster: &'static [&'static str],
}

const GROUPS: [Group; 3] = [
    Group {
        path: "/api/v1/",
        in_namespaces: &["configmaps", "events", "pods", "serviceaccounts", "services"],
        in_cluster: &["namespaces", "nodes"],
    },
    Group { path: "/apis/apps/v1/", in_namespaces: &["daemonsets"], in_cluster: &[] },
    Group {
        path: "/apis/rbac.authorization.k8s.io/v1/",
        in_namespaces: &["roles", "rolebindings"],
        in_cluster: &["clusterroles", "clusterrolebindings"],
    },
];

/// The object or the list that a path names.
#[derive(Debug, PartialEq, Eq)]
struct Target<'p> {
    group: &'static str,
    namespace: Option<&'p str>,
    resource: &'p str,
    name: Option<&'p str>,
}

/// Responds to the request line's method and target.
pub fn respond(responses: &Responses, method: &str, target: &str) -> Result<String, Refusal> {
    if method != "GET" {
        return Err(Refusal::NotKnown(format!("the method {method} of {target}")));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let stored = match responses.get(path) {
        Some(Value::Number(code)) => {
            return Err(status(code.as_u64().unwrap_or_default() as u16));
        }
        Some(Value::String(body)) => return Ok(body.clone()),
        stored => stored,
    };
    let target = parse_path(path)?;
    if let Some(list) = &target
        && list.name.is_none()
    {
        let query = ListQuery::parse(list.resource, query).map_err(Refusal::NotKnown)?;
        return Ok(query.page(items(responses, list)).to_string());
    }
    if let Some(object) = stored {
        if !query.is_empty() {
            return Err(Refusal::NotKnown(format!("the query {query} of {path}")));
        }
        return Ok(with_name(object, target.as_ref()).to_string());
    }
    match target {
        Some(_) if !query.is_empty() => {
            Err(Refusal::NotKnown(format!("the query {query} of {path}")))
        }
        Some(object) => find_listed_object(responses, &object),
        None => Err(status(404)),
    }
}

/// Returns the object with its name, which the API server always sends and which tests may omit.
fn with_name(object: &Value, target: Option<&Target<'_>>) -> Value {
    let mut object = object.clone();
    if let Some(Target { name: Some(name), .. }) = target
        && object["metadata"]["name"].is_null()
    {
        object["metadata"]["name"] = json!(name);
    }
    object
}

fn status(code: u16) -> Refusal {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => return Refusal::NotKnown(format!("the status {code}")),
    };
    Refusal::Status { code, reason }
}

/// Returns the object or the list that the path names. `None`: the path is `/version`, or that of a
/// request that the API server passes on to a pod.
fn parse_path(path: &str) -> Result<Option<Target<'_>>, Refusal> {
    if path == "/version" {
        return Ok(None);
    }
    for Group { path: group, in_namespaces, in_cluster } in GROUPS {
        let Some(rest) = path.strip_prefix(group) else { continue };
        let segments: Vec<&str> = rest.split('/').collect();
        let (namespace, resource, name) = match segments[..] {
            ["namespaces", _, "pods", _, "proxy", "status" | "metrics"] => return Ok(None),
            ["namespaces", namespace, resource] if in_namespaces.contains(&resource) => {
                (Some(namespace), resource, None)
            }
            ["namespaces", namespace, resource, name] if in_namespaces.contains(&resource) => {
                (Some(namespace), resource, Some(name))
            }
            [resource, name] if in_cluster.contains(&resource) => (None, resource, Some(name)),
            [resource] if in_cluster.contains(&resource) || in_namespaces.contains(&resource) => {
                (None, resource, None)
            }
            _ => continue,
        };
        return Ok(Some(Target { group, namespace, resource, name }));
    }
    Err(Refusal::NotKnown(format!("the path {path}")))
}

/// Returns the objects of the resource: of the lists of each namespace and of all.
fn items(responses: &Responses, target: &Target<'_>) -> Vec<Value> {
    let mut items = Vec::new();
    let mut names = BTreeSet::new();
    for (path, response) in responses {
        let Ok(Some(list)) = parse_path(path) else { continue };
        let is_of_resource = list.group == target.group && list.resource == target.resource;
        if !is_of_resource || list.name.is_some() {
            continue;
        }
        for item in response["items"].as_array().into_iter().flatten() {
            let mut item = item.clone();
            if let Some(namespace) = list.namespace
                && item["metadata"]["namespace"].is_null()
            {
                item["metadata"]["namespace"] = json!(namespace);
            }
            let namespace = item["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            let is_in_namespace = target.namespace.is_none_or(|name| name == namespace);
            let name = item["metadata"]["name"].as_str().map(str::to_owned);
            // Events of tests have no names.
            let is_new = name.is_none() || names.insert((namespace, name));
            if is_in_namespace && is_new {
                items.push(item);
            }
        }
    }
    items
}

/// Returns the object from the list that contains it.
fn find_listed_object(responses: &Responses, target: &Target<'_>) -> Result<String, Refusal> {
    for item in items(responses, target) {
        if item["metadata"]["name"].as_str() == target.name {
            return Ok(item.to_string());
        }
    }
    Err(status(404))
}
