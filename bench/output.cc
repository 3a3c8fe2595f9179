#include "bench/output.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "bench/python.h"
#include "tools/common/job.h"

namespace bench {
namespace {

// Returns whether |path| is empty or can be written, and prints an error if it cannot. Does not
// change an existing file.
bool can_write_file(const std::string& path) {
  if (path.empty()) return true;
  const bool existed = access(path.c_str(), F_OK) == 0;
  const bool opened = std::ofstream(path, std::ios::binary | std::ios::app).is_open();
  const int error = errno;
  if (opened && !existed) unlink(path.c_str());
  if (!opened) {
    std::fprintf(stderr, "hetcomm_bench: cannot write %s: %s\n", path.c_str(),
                 std::strerror(error));
  }
  return opened;
}

// Returns whether this process may have to draw: it is rank 0, or it is not part of a job.
bool may_draw() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (tools::is_set(name)) return std::strcmp(std::getenv(name), "0") == 0;
  }
  return true;
}

}  // namespace

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.flush();
  if (file) return true;
  std::fprintf(stderr, "hetcomm_bench: cannot write %s: %s\n", path.c_str(), std::strerror(errno));
  return false;
}

bool print(const OutputOptions& output, const std::string& text) {
  if (!output.file.empty()) return write_file(output.file, text);
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0;
}

bool draw_plot(const OutputOptions& output, const std::string& json) {
  if (output.plot.empty()) return true;
  const std::string failure = draw(json, output.plot);
  if (failure.empty()) return true;
  std::fprintf(stderr, "hetcomm_bench: cannot draw %s: %s\n", output.plot.c_str(), failure.c_str());
  return false;
}

bool can_write(const OutputOptions& output) {
  return can_write_file(output.file) && can_write_file(output.plot);
}

bool has_python(const Options& options) {
  if (options.compares()) {
    const bool with_torch = options.asks_for("pipeline");
    if (!driver_serves(with_torch ? "--compare torch" : "--compare")) return false;
  }
  if (options.pipeline.makes_links() && !driver_serves("--delays")) return false;
  // The library draws the picture of the test links without Python.
  const bool draws = !options.output.plot.empty() && !options.asks_for("links") && may_draw();
  return !draws || driver_serves("--plot");
}

}  // namespace bench
