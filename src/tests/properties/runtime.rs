//! A runtime that sends anything. The fuzz targets use it too.

use linkerd2_cni::cni::request;
use linkerd2_cni::plugin;
use serde_json::Value;
use tracing::subscriber::NoSubscriber;

/// An ADD for a container that is no pod, with `stdin`; what goes to stdout.
pub fn add(stdin: &[u8]) -> String {
    // Taken already, so that the plugin's own log does not start; it fails from the second time on.
    let _ = tracing::subscriber::set_global_default(NoSubscriber::default());
    let env = |name: &str| {
        let value = match name {
            "CNI_COMMAND" => "ADD",
            "CNI_CONTAINERID" => "abc",
            "CNI_NETNS" => "/no/such/netns",
            "CNI_IFNAME" => "eth0",
            "CNI_PATH" => "/opt/cni/bin",
            _ => return None,
        };
        Some(value.into())
    };
    match request::read(&env, &mut &*stdin) {
        Ok(request) => {
            plugin::run(&request).unwrap_or_else(|error| error.to_json(&request.cni_version))
        }
        Err(refusal) => refusal.error.to_json(&refusal.cni_version),
    }
}

/// Either a result or an error object, and nothing else.
pub fn is_answer(stdout: &str) -> bool {
    serde_json::from_str(stdout).is_ok_and(|answer: Value| {
        answer["cniVersion"].is_string()
            && (answer.get("code").is_none() || answer["msg"].is_string())
    })
}
