//! TLS to the API server, with what Go's clients accept and ureq's own TLS does not: a
//! server whose certificate is itself the CA in the kubeconfig, as `openssl req -x509`
//! makes it.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme, StreamOwned,
};
use ureq::tls::{PemItem, TlsConfig, parse_pem};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

use super::Error;
use super::kubeconfig::Access;

/// What webpki says of a server's certificate that is a CA's. It looks at that only
/// after the time of validity.
const IS_CA: &str = "CaUsedAsEndEntity";

/// The step of a connection that adds TLS. Clones share what they know of the server.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

impl Tls {
    /// With the certificates of the kubeconfig's CA, at least one; `None` where the
    /// server is not verified.
    pub fn of(access: &Access) -> Result<Option<Self>, Error> {
        if access.insecure || !access.server.starts_with("https://") {
            return Ok(None);
        }
        let bad = |source| Error::BadCertificate {
            server: access.server.clone(),
            source,
        };
        let mut roots = Vec::new();
        for item in parse_pem(&access.ca) {
            if let PemItem::Certificate(certificate) = item.map_err(bad)? {
                roots.push(CertificateDer::from(certificate.der().to_vec()));
            }
        }
        if roots.is_empty() {
            return Err(Error::NoCertificates {
                server: access.server.clone(),
            });
        }
        Tls::new(roots).map(Some).map_err(bad)
    }

    /// Trusts `roots`, of which what is no certificate is left out.
    fn new(roots: Vec<CertificateDer<'static>>) -> Result<Self, ureq::Error> {
        let provider = provider();
        let refused = |_| ureq::Error::Tls("the CA has no usable certificate");
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone())
            .build()
            .map_err(refused)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { webpki, roots }))
            .with_no_client_auth();
        Ok(Tls {
            config: Arc::new(config),
        })
    }
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
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| ureq::Error::BadUri(format!("{host} is no name of a server")))?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        let mut connection = ClientConnection::new(self.config.clone(), name)?;
        connection.complete_io(&mut socket)?;
        Ok(Some(Either::B(Encrypted {
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
            stream: StreamOwned::new(connection, socket),
        })))
    }
}

/// For `insecure-skip-tls-verify`, and for plain HTTP, which has no use for it.
pub fn unverified() -> TlsConfig {
    TlsConfig::builder()
        .disable_verification(true)
        .unversioned_rustls_crypto_provider(provider())
        .build()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A connection after its handshake.
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
        let verified = self.webpki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            Err(error) if is_ca(&error) && self.roots.iter().any(|root| root == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
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

fn is_ca(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(other))
        if format!("{:?}", other.0) == IS_CA)
}
