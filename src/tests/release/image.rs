//! The programs in an image: that of `LINKERD2_CNI_IMAGE`, as `scripts/test` makes it without a release, or those of the
//! release folder.

use std::env;
use std::fs;
use std::path::PathBuf;

use crate::folder::{ARCHITECTURES, archive, blob, json, unpacked};

fn images() -> Vec<PathBuf> {
    match env::var_os("LINKERD2_CNI_IMAGE") {
        Some(image) => vec![image.into()],
        None => ARCHITECTURES.into_iter().map(archive).collect(),
    }
}

/// What glibc's resolver has in a static program. It loads modules of the host, which belong to another libc.
const RESOLVER: [&str; 4] = ["getaddrinfo", "libnss_%s.so", "/etc/nsswitch.conf", "gethostbyname"];

#[test]
fn the_plugin_has_no_resolver_that_loads_modules_of_the_host() {
    for image in images() {
        let layout = unpacked(&image);
        let index = json(layout.path().join("index.json"));
        let manifest = json(blob(layout.path(), &index["manifests"][0]));
        let layer = unpacked(&blob(layout.path(), &manifest["layers"][0]));
        let resolver_of = |program: &str| {
            let bytes = fs::read(layer.path().join(program)).unwrap();
            let has = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            RESOLVER.into_iter().filter(has).collect::<Vec<_>>()
        };
        // The agent resolves names, so the texts can be found.
        assert!(!resolver_of("usr/bin/linkerd2-cni-install").is_empty(), "{}", image.display());
        let found = resolver_of("opt/cni/bin/linkerd-cni");
        assert!(found.is_empty(), "{}: the plugin has {found:?}", image.display());
    }
}
