# Three images of the same code. None was built in this project's CI, which has no container engine.
#   docker build --target cpu -t chatbot:cpu .
#   docker build --target gpu -t chatbot:gpu .
#   docker build --target serve -t chatbot:serve .
# Train in the current folder, or serve what was trained there; deploy/compose.yaml serves with fewer rights:
#   docker run --rm -it --user "$(id -u):$(id -g)" --volume "$PWD:/volume" chatbot:cpu python /app/train.py --data pairs.tsv
#   docker run --rm --init --volume "$PWD:/volume" --publish 127.0.0.1:8000:8000 chatbot:serve
FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Unprivileged; the manifests in kubernetes/ name the same ids.
RUN useradd --uid 1000 --user-group --create-home chatbot \
    && install --directory --owner=1000 --group=1000 /volume
WORKDIR /volume
CMD ["python", "/app/train.py", "--help"]

FROM base AS cpu
COPY requirements.txt /app/
RUN pip install --no-cache-dir --disable-pip-version-check --use-pep517 --require-hashes -r /app/requirements.txt
COPY train.py chat.py /app/
COPY chatbot /app/chatbot/
USER 1000:1000

# The API, the page and the Telegram bot, on the CPU.
FROM base AS serve
# For `python -m chatbot.chat.bots` in /volume. A named volume at /volume/data gets the owner of the folder.
ENV PYTHONPATH=/app
RUN install --directory --owner=1000 --group=1000 /volume/data
COPY requirements-serve.txt /app/
RUN pip install --no-cache-dir --disable-pip-version-check --use-pep517 --require-hashes -r /app/requirements-serve.txt
COPY train.py chat.py /app/
COPY chatbot /app/chatbot/
USER 1000:1000
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
CMD ["python", "/app/chat.py", "--serve", "0.0.0.0:8000", "--allowed-host", "localhost"]

# With the CUDA libraries that `make gpu` installs. The driver is the host's, through NVIDIA's container toolkit.
FROM base AS gpu
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY requirements-gpu.txt /app/
RUN pip install --no-cache-dir --disable-pip-version-check --use-pep517 --require-hashes -r /app/requirements-gpu.txt
COPY train.py chat.py /app/
COPY chatbot /app/chatbot/
USER 1000:1000
