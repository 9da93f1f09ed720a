// Builds a page of metrics in Prometheus's text format. poold and pool-scheduler use it; one thread.
#pragma once
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <utility>
#include <vector>

namespace gpupool {

using Labels = std::vector<prometheus::ClientMetric::Label>;

class MetricsPage {
 public:
  class Family {
   public:
    explicit Family(prometheus::MetricFamily& family) : family_(family) {}
    void add(Labels labels, double value) {
      prometheus::ClientMetric metric;
      metric.label = std::move(labels);
      if (family_.type == prometheus::MetricType::Counter)
        metric.counter.value = value;
      else
        metric.gauge.value = value;
      family_.metric.push_back(std::move(metric));
    }

   private:
    prometheus::MetricFamily& family_;
  };
  // The returned family is valid until the next call of one of these functions.
  Family gauge(const char* name, const char* help) { return make(name, help, prometheus::MetricType::Gauge); }
  Family counter(const char* name, const char* help) {
    return make(name, help, prometheus::MetricType::Counter);
  }
  // The same for a metric of another program's name, without the prefix.
  Family named(const char* name, const char* help, prometheus::MetricType type) {
    return make(name, help, type, "");
  }
  // Adds a metric without labels.
  void gauge(const char* name, const char* help, double value) { gauge(name, help).add({}, value); }
  void counter(const char* name, const char* help, double value) { counter(name, help).add({}, value); }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  Family make(const char* name, const char* help, prometheus::MetricType type,
              const char* prefix = "gpupool_") {
    families_.emplace_back();
    families_.back().name = std::string(prefix) + name;
    families_.back().help = help;
    families_.back().type = type;
    return Family(families_.back());
  }
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace gpupool
