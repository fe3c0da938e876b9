# syntax=docker/dockerfile:1
# Builds the image with docker: docker buildx build . (README.md says how to build for two platforms).
# scripts/image builds an image with the same paths and programs without a container engine. Its programs are linked
# against glibc, those of this file against musl.

FROM rust:1.95-alpine AS build
# musl-dev: for ring's C code. Alpine's Rust target is musl, so the programs are static.
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
# The manifest of a workspace member, without which cargo does not read the workspace.
COPY testkit/Cargo.toml testkit/Cargo.toml
ARG TARGETPLATFORM
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=target-$TARGETPLATFORM \
    cargo build --locked --release --bin linkerd-cni --bin linkerd2-cni-install \
 && install -D target/release/linkerd-cni /root-fs/opt/cni/bin/linkerd-cni \
 && install -D target/release/linkerd2-cni-install /root-fs/usr/bin/linkerd2-cni-install \
 && install -d /root-fs/usr/lib/linkerd \
 && ln -s ../../bin/linkerd2-cni-install /root-fs/usr/lib/linkerd/linkerd-cni-repair-controller \
 && install -d -m 1777 /root-fs/tmp
COPY LICENSE THIRD-PARTY-NOTICES.txt /root-fs/linkerd/

# Image of the pods that scripts/quickstart starts: docker buildx build --target probe .
FROM build AS build-probe
COPY testkit testkit
ARG TARGETPLATFORM
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=target-$TARGETPLATFORM \
    cargo build --locked --release --package testkit --bin netprobe && install -D target/release/netprobe /probe-fs/probe

FROM scratch AS probe
COPY --from=build-probe /probe-fs /
CMD ["/probe", "pause"]

FROM scratch
LABEL org.opencontainers.image.title=cni-plugin \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.source=https://github.com/linkerd/linkerd2-cni
COPY --from=build /root-fs /
WORKDIR /linkerd
# The agent writes to the node's directories, which belong to root.
USER 0
CMD ["/usr/bin/linkerd2-cni-install"]
