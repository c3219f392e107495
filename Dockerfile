# Two images from one build, by the scripts that `make` runs too:
#   docker build --target postgres .    PostgreSQL 15 with the extension and pg_cron
#   docker build --target daemon .      paylatchd alone, not as root

FROM rust:1.95.0-bookworm AS builder
WORKDIR /src
# The tools change seldom: they come first, so that a change of ours does not build them again.
COPY Cargo.toml rust-toolchain.toml ./
COPY scripts scripts
RUN scripts/setup build
COPY . .
RUN scripts/build-extension /out/extension
RUN scripts/build-driver --release && cp target/release/paylatchd /out/

FROM postgres:15-bookworm AS postgres
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends postgresql-15-cron \
    && rm -rf /var/lib/apt/lists/*
COPY --from=builder /out/extension /
CMD ["postgres", "-c", "shared_preload_libraries=pg_cron", "-c", "cron.database_name=paylatch", \
     "-c", "cron.use_background_workers=on"]

FROM debian:bookworm-slim AS daemon
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home paylatchd
COPY --from=builder /out/paylatchd /usr/local/bin/
USER 10001
ENTRYPOINT ["paylatchd"]
CMD ["run"]
