# For GPU machines, and workers of the service with a GPU: Triton's own image, so that
# `--server triton` finds the server that you deploy.
# Choose the release that you run in production; docker/triton-releases.csv has what is known of each.
ARG TRITON_RELEASE=26.09
FROM nvcr.io/nvidia/tritonserver:${TRITON_RELEASE}-py3 AS triton

FROM triton AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# The version of python3-venv follows the image, whose release is the ARG above.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY docker docker
# An engine runs on the TensorRT that built it alone, and CUDA's libraries are of one major version:
# the image's own decide, and a release that the table contradicts ends the build.
ARG TRITON_RELEASE
RUN python3 docker/constraints.py "${TRITON_RELEASE}" > constraints.txt
COPY analyzer analyzer
COPY templates templates
COPY search_spaces search_spaces
RUN python3 -m venv /opt/tritune \
 && /opt/tritune/bin/pip install --no-cache-dir --constraint constraints.txt '.[buckets,gpu,oidc,postgres,service]' \
 && /opt/tritune/bin/pip uninstall --yes pip \
 && cp docker/health.py /opt/tritune/health.py

FROM triton
LABEL org.opencontainers.image.title="Tritune" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/tritune /opt/tritune
ENV PATH=/opt/tritune/bin:${PATH} \
    TRITUNE_CACHE=/cache
# A volume that is mounted there takes the folder's owner over.
RUN useradd --create-home --uid 10001 tritune \
 && install --directory --owner=10001 --group=10001 --mode=0700 /cache /data /results
USER 10001
WORKDIR /home/tritune
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
  CMD ["/opt/tritune/bin/python", "/opt/tritune/health.py"]
ENTRYPOINT ["analyze"]
CMD ["--help"]
