# docker build -t pointsman .
# The program, the shared libraries that it needs, certificates, and nothing else: no shell, no packages.
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN cargo build --locked --release --bin pointsman
RUN set -eu; \
    install -Ds -m 755 target/release/pointsman /root-of-image/usr/bin/pointsman; \
    for library in $(ldd target/release/pointsman | grep -o '/[^ ]*'); do \
        install -D -m 755 "$library" "/root-of-image$library"; \
    done; \
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt /root-of-image/etc/ssl/certs/ca-certificates.crt; \
    printf 'root:x:0:0::/:\nnonroot:x:65532:65532::/:\n' > /root-of-image/etc/passwd; \
    printf 'root:x:0:\nnonroot:x:65532:\n' > /root-of-image/etc/group; \
    echo 'hosts: files dns' > /root-of-image/etc/nsswitch.conf; \
    install -d -m 1777 /root-of-image/tmp

FROM scratch
COPY --from=build /root-of-image /
USER 65532:65532
EXPOSE 8092 9092
ENTRYPOINT ["/usr/bin/pointsman"]
