"""Counts and histograms for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from fairseq_ext.search.report import Report
from fairseq_ext.serve.models import Models

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class OfEngines(Collector):
    """The metrics that the engines count."""

    def __init__(self, models: Models):
        self.models = models

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily]:
        work, name = self.models.work(), "fairseq_ext_"
        pending, waiting = self.models.counts()
        yield CounterMetricFamily(
            name + "target_tokens",
            "target tokens of the best hypotheses, EOS included",
            work.tokens,
        )
        yield CounterMetricFamily(name + "sentences", "sentences decoded", work.sentences)
        yield CounterMetricFamily(
            name + "refills", "times that waiting sentences joined the search", work.refills
        )
        yield SummaryMetricFamily(
            name + "rows_a_step",
            "rows of each decoder call",
            count_value=work.steps,
            sum_value=work.rows,
        )
        yield CounterMetricFamily(
            name + "worker_restarts", "workers that died and were replaced", self.models.restarts
        )
        yield GaugeMetricFamily(name + "models", "models that are loaded", len(self.models.engines))
        yield GaugeMetricFamily(name + "pending", "requests that are not answered", pending)
        yield GaugeMetricFamily(name + "waiting", "of these, the ones in the queue", waiting)


class Metrics:
    """The metrics of one server."""

    def __init__(self, models: Models):
        self.registry = CollectorRegistry()
        self.registry.register(OfEngines(models))
        self.requests = Counter(
            "fairseq_ext_requests", "HTTP requests", ["route", "status"], registry=self.registry
        )
        self.queue = Histogram(
            "fairseq_ext_queue_seconds",
            "from submission to the decoder",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.latency = Histogram(
            "fairseq_ext_latency_seconds",
            "from submission to the answer",
            buckets=SECONDS,
            registry=self.registry,
        )

    def answered(self, answer: Report) -> None:
        """Count an answer."""
        self.queue.observe(answer.queued)
        self.latency.observe(answer.queued + answer.decoded)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's form."""
        return generate_latest(self.registry)
