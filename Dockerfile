# The manager's image. It needs BuildKit (docker buildx, or podman build) and fetches only Go modules:
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 --tag IMG .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src

# Modules change seldom, so this layer is reused while the code changes.
COPY go.mod go.sum ./
RUN go mod download

COPY api/ api/
COPY cmd/ cmd/
COPY controllers/ controllers/
COPY internal/ internal/
ARG TARGETOS TARGETARCH VERSION=dev
# The compiler of the build machine compiles for the target, without emulation.
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/manager ./cmd

FROM gcr.io/distroless/static:nonroot
ARG VERSION=dev
LABEL org.opencontainers.image.title="External Backend Operator" \
      org.opencontainers.image.source="https://github.com/external-backend/operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version=$VERSION
COPY LICENSE /LICENSE
COPY --from=build /out/manager /manager
# By number: runAsNonRoot cannot judge a name.
USER 65532:65532
ENTRYPOINT ["/manager"]
