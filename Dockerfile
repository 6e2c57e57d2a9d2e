# The server with the bundled model, without a GPU: docker build -t foretell . && docker run -p 8000:8000 foretell
FROM python:3.11-slim
ARG PIP_INDEX_URL
WORKDIR /app
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt torch \
    && pip install --no-cache-dir --constraint constraints.txt ".[server]" \
    && useradd --create-home foretell \
    && mkdir /models /data \
    && chown foretell /models /data
USER foretell
WORKDIR /data
ENV HF_HOME=/models
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["foretell", "serve"]
CMD ["tiny", "--host", "0.0.0.0"]
