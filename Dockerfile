# The server in a container. deploy/compose/compose.yaml says what the container must be allowed to do, and
# docs/operations/docker.md how to publish its ports: 8000 for the API, 6080 for noVNC, 8888 for JupyterLab.
#
#   docker build -t caisson .
#
# Both images may be replaced, such as by mirrors: --build-arg BUILD_IMAGE=... --build-arg BASE_IMAGE=...
ARG BUILD_IMAGE=rust:1.95-trixie
ARG BASE_IMAGE=debian:trixie-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
# The pages are bundled with Node.js; ./build-web says when that of the image is too old.
RUN apt-get update && apt-get install --yes --no-install-recommends nodejs npm && rm -rf /var/lib/apt/lists/*
RUN ./build-web && cargo build --locked --release -p caisson

FROM ${BASE_IMAGE}
# Sandboxes see this image's /usr: what jobs shall find must be installed here.
ARG PACKAGES="ca-certificates curl e2fsprogs git mount python3 python3-pip"
RUN apt-get update \
  && apt-get install --yes --no-install-recommends ${PACKAGES} \
  && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/caisson /usr/bin/caisson
COPY caisson.example.toml deploy/image/caisson.toml /etc/caisson/
VOLUME /var/lib/caisson
EXPOSE 8000 6080 8888
# With TLS the certificate is for the server's name, not for this address.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
  CMD curl --noproxy '*' --fail --silent --output /dev/null http://127.0.0.1:8000/readyz \
    || curl --noproxy '*' --fail --silent --insecure --output /dev/null https://127.0.0.1:8000/readyz
ENTRYPOINT ["/usr/bin/caisson"]
CMD ["serve"]
