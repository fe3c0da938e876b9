//! Opens the listener for `/live`, `/ready`, `/metrics` and `/status`.

use std::sync::Arc;

use tracing::info;

use super::settings::Settings;
use super::status::Status;
use crate::admin;

/// The admin listener. Opening it is retried in each pass, since the agent that ran before
/// this one may still hold the port.
#[derive(Default)]
pub enum AdminListener {
    #[default]
    Closed,
    Open,
}

impl AdminListener {
    /// Opens the listener if an address is set and it is not open yet.
    ///
    /// # Errors
    /// If the address is in use or not valid on this node.
    pub fn open(&mut self, settings: &Settings, status: &Arc<Status>) -> Result<(), String> {
        let (Some(address), AdminListener::Closed) = (settings.admin_address, &self) else {
            return Ok(());
        };
        let [live, ready, metrics, node] = [status; 4].map(Arc::clone);
        let handlers = admin::Handlers {
            live: Box::new(move || live.live()),
            ready: Box::new(move || ready.ready().map(|()| ready.ready_note())),
            metrics: Box::new(move || metrics.metrics()),
            status: Some(Box::new(move || node.node_status())),
        };
        let opened = admin::listener(address).and_then(|listener| {
            let address = listener.local_addr()?;
            admin::serve(listener, handlers)?;
            Ok(address)
        });
        let address = opened.map_err(|error| format!("cannot listen on {address}: {error}"))?;
        info!("serving /live, /ready and /metrics on {address}");
        *self = AdminListener::Open;
        Ok(())
    }
}
