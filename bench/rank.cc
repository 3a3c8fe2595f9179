#include "bench/rank.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include <fmt/core.h>

#include "bench/hetcomm_backend.h"
#include "bench/loops/run.h"
#include "bench/pointer.h"
#include "bench/post.h"
#include "bench/staging.h"
#include "tools/common/mpi/bridge.h"
#include "tools/common/texts.h"

namespace bench {
namespace {

void run_work(tools::Session& session, const Work& work, int number,
              const std::function<void(const Measurement&)>& report) {
  if (session.ranks() < 2) tools::fail("this job has one rank; start two or more");
  hetcomm_communicator_t* communicator =
      session.create_communicator(fmt::format("bench-{}", number), work.transport);
  if (is_staging(work.workload.test)) {
    run_staging(session, communicator, work, report);
  } else if (work.workload.test == "pointer_latency") {
    run_pointer(session, work, report);
  } else if (work.workload.test == "post_latency") {
    run_post(session, communicator, work, report);
  } else {
    HetcommBackend backend(session, communicator, work);
    run_workload(backend, work.workload, report);
  }
  // Waits for all ranks, since another rank may still be measuring or using this rank's memory.
  tools::require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE),
                 "leaving together");
  session.destroy_communicator(communicator);
}

std::vector<std::string> kinds_of(const std::vector<Work>& works) {
  std::vector<std::string> kinds;
  for (const Work& work : works) {
    kinds.push_back(work.first_memory);
    kinds.push_back(work.second_memory);
  }
  return kinds;
}

// Returns whether two works have the same context settings and can share a session.
bool share_a_session(const Work& a, const Work& b) {
  return a.progress == b.progress && a.staging_chunk == b.staging_chunk &&
         a.staging_depth == b.staging_depth && a.rails == b.rails && a.pin == b.pin;
}

std::vector<Row> run_works(tools::Launcher launcher, const std::vector<Work>& works) {
  std::vector<Row> rows;
  size_t next = 0;
  // Between two hosts, session 0 is the control session.
  for (int number = launcher == tools::Launcher::kTwoHosts ? 1 : 0; next < works.size(); ++number) {
    const Work& first = works[next];
    tools::SessionOptions session_settings = session_options(first);
    session_settings.devices = kinds_of(works);
    tools::Session session(launcher, number, session_settings);
    for (; next < works.size() && share_a_session(works[next], first); ++next) {
      Work work = works[next];
      work.ranks = session.ranks();
      run_work(session, work, static_cast<int>(next), [&](const Measurement& measured) {
        rows.push_back(make_row(work, "hetcomm", measured));
      });
    }
  }
  return rows;
}

// --- text between two hosts ----------------------------------------------------------------------

// Exchanges texts between two hosts over a communicator of a separate session.
class Control {
 public:
  // |timeout_ns| limits the wait for the other host.
  explicit Control(uint64_t timeout_ns) : session_(tools::Launcher::kTwoHosts, 0, {}) {
    communicator_ = session_.create_communicator("bench-control", "auto", timeout_ns);
  }
  ~Control() { session_.destroy_communicator(communicator_); }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void send(const std::string& text) { tools::send_text(communicator_, 1 - session_.rank(), text); }
  std::string receive() { return tools::receive_text(communicator_, 1 - session_.rank()); }

 private:
  tools::Session session_;
  hetcomm_communicator_t* communicator_ = nullptr;
};

std::string encode_works(const std::vector<Work>& works) {
  std::string text;
  for (const Work& work : works) {
    for (const std::string& word : encode_words(work)) text += word + " ";
    text += '\n';
  }
  return text;
}

std::vector<Work> decode_works(const std::string& text) {
  std::vector<Work> works;
  for (const std::string_view line : split(text, '\n')) {
    Work& work = works.emplace_back();
    for (const std::string_view word : split(line, ' ')) {
      if (!decode_work_word(word, &work))
        tools::fail(
            "the other host runs another version of hetcomm_bench; install the same on both");
    }
  }
  return works;
}

// Encodes each row as a measurement line. decode_rows() finds the row's work by counting points.
std::string encode_rows(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) text += encode(row.measured) + '\n';
  return text;
}

std::vector<Row> decode_rows(const std::string& text, const std::vector<Work>& works) {
  std::vector<Row> rows;
  size_t work = 0;
  size_t point = 0;
  for (const std::string_view line : split(text, '\n')) {
    Measurement measured;
    while (work < works.size() && point == works[work].workload.points.size()) {
      ++work;
      point = 0;
    }
    if (work == works.size() || !decode(line, &measured))
      tools::fail(
          "the other host has sent results that cannot be read; does it run the same version?");
    rows.push_back(make_row(works[work], "hetcomm", measured));
    ++point;
  }
  return rows;
}

void set_variables(int rank, const std::string& host, int port) {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", host.c_str(), 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}

}  // namespace

int run_as_runner(const Work& work) {
  tools::Session session(tools::Launcher::kEnvironment, 0, session_options(work));
  run_work(session, work, 0, [](const Measurement& measured) {
    std::puts(encode(measured).c_str());
    std::fflush(stdout);
  });
  return 0;
}

std::vector<Row> run_in_job(tools::Launcher launcher, const std::vector<Work>& works) {
  std::vector<Row> rows = run_works(launcher, works);
  tools::mpi_finish();
  return rows;
}

std::vector<Row> run_as_listener(int port) {
  // The client chooses the address, so the store listens on all addresses, or on those of
  // HETCOMM_INTERFACE.
  const char* family = std::getenv("HETCOMM_FAMILY");
  set_variables(0, family != nullptr && std::strcmp(family, "ipv6") == 0 ? "::" : "0.0.0.0", port);
  // A listener waits without limit.
  Control control(HETCOMM_TIMEOUT_INFINITE);
  std::vector<Row> rows = run_works(tools::Launcher::kTwoHosts, decode_works(control.receive()));
  control.send(encode_rows(rows));
  return rows;
}

std::vector<Row> run_as_client(const std::string& host, int port, const std::vector<Work>& works) {
  set_variables(1, host, port);
  // Once a client has reached the listener's store, the listener is running. If it then takes
  // longer than this, it has failed.
  constexpr uint64_t kMeetingNs = 30'000'000'000;
  Control control(std::getenv("HETCOMM_BOOTSTRAP_TIMEOUT") == nullptr ? kMeetingNs : 0);
  setenv("HETCOMM_BOOTSTRAP_TIMEOUT", "30s", 0);
  control.send(encode_works(works));
  run_works(tools::Launcher::kTwoHosts, works);
  return decode_rows(control.receive(), works);
}

}  // namespace bench
