# Two images of the same code. Neither was built in this project's CI, which has no container engine.
#   docker build --target cpu -t chatbot:cpu .
#   docker build --target gpu -t chatbot:gpu .
# Run one in the current folder:
#   docker run --rm -it --user "$(id -u):$(id -g)" --volume "$PWD:/volume" chatbot:cpu python /app/train.py --data pairs.tsv
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

# With the CUDA libraries that `make gpu` installs. The driver is the host's, through NVIDIA's container toolkit.
FROM base AS gpu
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY requirements-gpu.txt /app/
RUN pip install --no-cache-dir --disable-pip-version-check --use-pep517 --require-hashes -r /app/requirements-gpu.txt
COPY train.py chat.py /app/
COPY chatbot /app/chatbot/
USER 1000:1000
