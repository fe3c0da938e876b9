# syntax=docker/dockerfile:1
# Builds the image with docker: README.md has the commands. scripts/compile builds the programs, as for scripts/image. It
# runs on the builder's own platform and compiles for the image's.

FROM --platform=$BUILDPLATFORM rust:1.95-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS build
WORKDIR /src
ENV LINKERD2_CNI_CACHE=/cache
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY scripts scripts
# The manifests of the workspace's members, without which cargo does not read the workspace.
COPY testkit/Cargo.toml testkit/Cargo.toml
COPY testkit/netprobe/Cargo.toml testkit/netprobe/Cargo.toml
ARG TARGETPLATFORM
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/cache,sharing=locked \
    scripts/compile "$TARGETPLATFORM" /programs linkerd-cni linkerd2-cni-install \
 && install -D /programs/linkerd-cni /root-fs/opt/cni/bin/linkerd-cni \
 && install -D /programs/linkerd2-cni-install /root-fs/usr/bin/linkerd2-cni-install \
 && install -d /root-fs/usr/lib/linkerd \
 && ln -s ../../bin/linkerd2-cni-install /root-fs/usr/lib/linkerd/linkerd-cni-repair-controller \
 && install -d -m 1777 /root-fs/tmp
COPY LICENSE THIRD-PARTY-NOTICES.txt /root-fs/linkerd/

# Image of the pods that scripts/quickstart starts: docker buildx build --target probe .
FROM build AS build-probe
COPY testkit/netprobe testkit/netprobe
ARG TARGETPLATFORM
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/cache,sharing=locked \
    scripts/compile "$TARGETPLATFORM" /programs netprobe:netprobe && install -D /programs/netprobe /probe-fs/probe

FROM scratch AS probe
COPY --from=build-probe /probe-fs /
CMD ["/probe", "pause"]

FROM scratch
LABEL org.opencontainers.image.title=cni-plugin \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /root-fs /
WORKDIR /linkerd
# The agent writes to the node's directories, which belong to root.
USER 0
CMD ["/usr/bin/linkerd2-cni-install"]
