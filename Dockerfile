# For GPU machines: Triton's own image, so that `--server triton` finds the server that you deploy.
# Choose the release that you run in production.
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.09-py3

FROM ${TRITON_IMAGE} AS build
# The version of python3-venv follows the image, whose release is the ARG above.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY analyzer analyzer
COPY templates templates
COPY search_spaces search_spaces
RUN python3 -m venv /opt/tritune \
 && /opt/tritune/bin/pip install --no-cache-dir '.[gpu,postgres]' \
 && /opt/tritune/bin/pip uninstall --yes pip

FROM ${TRITON_IMAGE}
LABEL org.opencontainers.image.title="Tritune" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/tritune /opt/tritune
ENV PATH=/opt/tritune/bin:${PATH}
RUN useradd --create-home --uid 10001 tritune
USER 10001
WORKDIR /home/tritune
ENTRYPOINT ["analyze"]
CMD ["--help"]
