# docker build -t cotrain .                                    for a CPU
# docker build -t cotrain --build-arg TORCH_INDEX=URL .        with the torch of another package index, such as CUDA's
# docker run --rm -v "$PWD/runs:/data/runs" cotrain demo
FROM python:3.11-slim

ARG TORCH_INDEX=""

RUN useradd --create-home --uid 1000 cotrain \
    && mkdir /data \
    && chown cotrain /data

COPY pyproject.toml README.md LICENSE constraints.txt /src/
COPY cotrain /src/cotrain
COPY bases /src/bases

RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c /src/constraints.txt torch \
    && pip install --no-cache-dir -c /src/constraints.txt "/src[serve]" /src/bases \
    && rm -rf /src

USER 1000
WORKDIR /data
ENTRYPOINT ["cotrain"]
CMD ["--help"]
