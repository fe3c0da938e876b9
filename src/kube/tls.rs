//! TLS to the API server. Unlike ureq's own TLS, it accepts a server certificate that is itself
//! the CA in the kubeconfig, as Go's clients do. `openssl req -x509` makes such certificates.
//! It also verifies the certificate for `tls-server-name`.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme, StreamOwned,
};
use ureq::tls::{PemItem, parse_pem};
use ureq::unversioned::transport::time::Instant;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

use super::Error;
use super::kubeconfig::ApiAccess;
use super::literal_address::host;

/// Name of webpki's error for a server certificate that is a CA. webpki checks the period of
/// validity first, so a certificate with this error is within that period. The error is compared by
/// its name, because rustls does not export its type:
/// <https://docs.rs/rustls-webpki/latest/webpki/enum.Error.html#variant.CaUsedAsEndEntity>
const SERVER_CERTIFICATE_IS_CA: &str = "CaUsedAsEndEntity";

/// Adds TLS to ureq's TCP connections.
#[derive(Clone, Debug)]
pub struct Tls {
    /// `None` for plain HTTP.
    config: Option<Arc<ClientConfig>>,
    /// The name that the certificate is for. `None`: the host of the URL.
    server_name: Option<String>,
}

impl Tls {
    /// Fails if the CA has no certificate or is not valid PEM. Plain HTTP needs no CA.
    pub fn new(access: &ApiAccess) -> Result<Self, Error> {
        let server_name = access.tls_server_name.clone();
        if !access.server.starts_with("https://") {
            return Ok(Tls { config: None, server_name });
        }
        let config = client_config(&access.ca)
            .map_err(|problem| Error::InvalidCa { server: access.server.clone(), problem })?;
        Ok(Tls { config: Some(Arc::new(config)), server_name })
    }
}

/// Returns a configuration that trusts the CAs in `ca`, which is PEM. The error is the rest of a
/// sentence that starts with the CA.
fn client_config(ca: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = Vec::new();
    for item in parse_pem(ca) {
        let item = item.map_err(|error| format!("is not valid PEM: {error}"))?;
        if let PemItem::Certificate(certificate) = item {
            roots.push(CertificateDer::from(certificate.der().to_vec()));
        }
    }
    if roots.is_empty() {
        return Err("contains no PEM certificate".to_owned());
    }
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = WebPkiServerVerifier::builder_with_provider(store.into(), provider.clone());
    let webpki = builder.build().map_err(|_| "contains no usable certificate".to_owned())?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot be used: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { webpki, roots }))
        .with_no_client_auth();
    // TLS sessions are not resumed, because the cache of sessions costs memory, and few connections
    // follow one another.
    config.resumption = Resumption::disabled();
    Ok(config)
}

impl<In: Transport> Connector<In> for Tls {
    type Out = Either<In, Encrypted>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else {
            return Ok(None);
        };
        let Some(config) = self.config.clone() else {
            // Plain HTTP needs no TLS.
            return Ok(Some(Either::A(transport)));
        };
        let name = self.server_name.as_deref().unwrap_or(host(details.uri));
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| ureq::Error::BadUri(format!("{name} is not a valid server name")))?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        // The time-out is for the whole connect, so the handshake has only the time that the TCP
        // connect has left.
        let mut timeout = details.timeout;
        if let Instant::Exact(began) = details.now {
            timeout.after = timeout.after.saturating_sub(began.elapsed()).into();
        }
        socket.set_timeout(timeout);
        let mut connection = ClientConnection::new(config, name)?;
        connection.complete_io(&mut socket).map_err(tls_error)?;
        Ok(Some(Either::B(Encrypted {
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
            stream: StreamOwned::new(connection, socket),
        })))
    }
}

pub struct Encrypted {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").finish_non_exhaustive()
    }
}

impl Transport for Encrypted {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let output = self.buffers.output();
        self.stream.write_all(&output[..amount])?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

/// Verifies the server's certificate by webpki, and also accepts one of `roots` as the server's own
/// certificate if it is for the server's name.
#[derive(Debug)]
struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let webpki = &self.webpki;
        match webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        {
            Err(error) if is_ca(&error) && self.roots.iter().any(|root| root == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Converts an error of the TLS handshake. rustls wraps its own errors in an I/O error. They are
/// unwrapped, so that [`Error::is_certificate_error`] recognizes an invalid certificate.
fn tls_error(error: io::Error) -> ureq::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => error.clone().into(),
        None => error.into(),
    }
}

fn is_ca(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(other))
        if format!("{:?}", other.0) == SERVER_CERTIFICATE_IS_CA)
}
