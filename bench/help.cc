#include "bench/options.h"

namespace bench {

const char* const kHelpBefore = R"(NAME
  hetcomm_bench - latency and bandwidth of hetcomm by message size and path

SYNOPSIS
  hetcomm_bench [TEST[,TEST...]] [OPTION...]            two processes on this host
  hetcomm_bench TEST --compare PEER[,...] [OPTION...]   against other libraries
  hetcomm_bench --listen [OPTION...]                    on one host, and
  hetcomm_bench TEST HOST [OPTION...]                   on another
  mpirun -np N hetcomm_bench TEST [OPTION...]           under an MPI launcher
  torchrun --no-python ... hetcomm_bench TEST [OPTION...]
                                                        with torchrun's variables

DESCRIPTION
  Measures how long messages between two ranks take, and one-sided operations on
  the other's memory. Without TEST: latency and bandwidth over shared memory and
  over TCP. Started alone, it starts its ranks
  itself, each bound to a core of its own.

  Every average, and every bandwidth, is the total time of a pass over its
  iterations, with no clock inside the loop. Minimum, typical (median), maximum
  and percentiles come from a second pass, with a clock around each message.
  Latency is one way, half of a round trip; that of get and fetch_add is the whole
  operation.

TESTS
  latency      one message to and fro.
  bandwidth    --window messages at a time in one direction, then an
               acknowledgement. --window 1: blocking sends back to back.
  bibandwidth  the same in both directions at once.
  msgrate      all pairs of --ranks: every rank sends --window small messages to
               every other and receives as many from each.
  overlap      time of a transfer whose receiver computes after it has posted the
               receive: against an idle receiver, and how much of the transfer
               the computing hid. In both progress modes, caller and thread.
  put          put_latency: a put to and fro, seen by its target in the last byte of
               its memory. put_bandwidth: --window puts at a time, until all have
               happened at the owner.
  put_notify   put_notify_latency: notified puts to and fro; the target waits for
               the notification. put_notify_bandwidth: --window at a time.
  get          get_latency, get_bandwidth: of the other's memory.
  fetch_add    fetch_add_latency; fetch_add_rate: --window at a time, a word of its
               own for each. Always 8 bytes.
  all          every one of these.
  staging      bandwidth of device memory that goes through chunks of host memory,
               beside copying alone and the same messages from host to host (wire),
               for each --chunk and --depth. Rates of simulated devices are set by
               HETCOMM_DEVICES=sim-handle:bandwidth=1G:latency=5us
  staged_allreduce, staged_allgather
               the same of these operations of device memory: copy is what each rank
               copies at least, wire the operation on memory of the host.
  pointer_latency  time of 1000 calls that find the memory which a plain pointer
               leads to: microseconds are nanoseconds of one call.
  post_latency time of the call that posts a message behind what a stream of a
               device still does (--stream).
  allreduce, reduce_scatter, allgather, alltoall, broadcast, reduce, barrier
               of --ranks processes, float32 elements and sums, with the columns of
               nccl-tests: the size is that of the larger side's whole buffer.
               Out of place, then in place where there is that; always checked.
  collectives  all of these.
  links        the links between the hosts of a job: one rank of each host takes
               part (two, for the inside of a host). Every pair of hosts, alone up
               to 8 hosts, else in rounds of disjoint pairs; then each host with
               several others at once, and clusters with each other, for what they
               share. Of more than 64 hosts a sample. Prints the link model as text
               or, with --format json, as a file for HETCOMM_LINK_MODEL; --plot is
               a heat map. --seconds is the time of a round (0.4). --check compares
               the model with 4 random rounds of 1 to 4 transfers and fails above
               10 %.
  affinity     what it is worth that each device uses the NIC next to it. Each rank
               stands for one device of its host (of HETCOMM_DEVICES, else of the
               machine, else a NUMA node). All devices of the first host send to
               those of the second at once: over their near NICs, over far ones,
               and all over one NIC; --rounds times (5) in turns of --seconds (0.5).
               Prints medians and gains.
  queue        what a queue hides of the communication between two ranks of a
               pipeline, against sends where an item was made and receives where one
               is needed. --pattern stream: one rank computes and pushes, the other
               pulls and computes; 1f1b: the first rank computes --warmups (3,4)
               items ahead, and the second answers each. --compute timer sleeps,
               burn keeps its core. -b is the size of an item (1M), --ratios the
               computation over the communication of an item (0.5,1,2), --window the
               depth (4), --seconds the time of a pass (1), --rounds how often the
               two ways are measured in turns (3). --format osu is the layout of
               OSU's non-blocking tests. --pattern share, alone: a queue for each
               of --weights (3,1) to the other ranks in turns is kept full, and has
               its part of the way.
  pipeline     how long a pipeline takes for a micro-batch, by schedule, beside
               what the simulator forecasts from the links measured alone, and with
               each step as long as it was in the run (replayed).
               --schedules names them, --stage-ms is the computation of a rank for
               a micro-batch (20), a third of it forward; --compute timer, burn or
               none. -b is the size of what goes from stage to stage (4K), --window
               the items in flight (one more than the simulation needs). The time
               of a micro-batch is the slope between two runs of --micro-batches
               (64,192), measured in turns, --rounds times (3), by --ranks ranks
               (2). --compute none measures what the executor itself takes for an
               action of the rank with the most. --delays and --rates measure each
               such link between two hosts, network namespaces of this machine with
               half of the ranks each. --compare torch adds torch modules: by
               hetcomm.pipeline, and by torch's own pipelining over Gloo and over
               hetcomm. --plot draws the times by delay, or by schedule.
  reshard      how long a tensor takes from one parallel layout to another, by every
               strategy. The first half of the ranks (8) holds it, the second half
               gets it. -b is its size (64M). --cases 4x1:1x4,2x2:2x1r2 are pairs of
               layouts: batch in D and sequence in S pieces as DxS, with rR for
               replicas and pP for terms of a sum (all pairs of DxS with as many
               ranks). --strategies chooses among auto, direct, leader,
               gather_p2p_scatter, sendrecv_allgather and bsr; --slice is about the
               size of a message. Strategies are measured in turns, --rounds times
               (5), --seconds each (0.5). --simulate needs no job: 28 cases of 16 to
               16 ranks on seven models of links, by max-min fair flows. --plot
               draws box plots.
  One-sided memory is registered memory of the library's allocator. put, get,
  put_notify and fetch_add stand for both tests of the name.
  In windowed tests every message in flight has buffers of its own on both sides;
  where these would take more than 128 MiB, fewer messages are in flight.

OPTIONS)";

const char* const kHelpAfter = R"(OUTPUT
  #bytes, #iterations    size of a message, and messages sent by one rank
  t_min ... 99.9%[usec]  times of one message; t_typical is the median
  BW peak[MB/s]          by the fastest window; MB are 10^6 bytes
  BW average[MB/s]       all messages over the total time
  MsgRate[Mpps]          million messages per second, of all ranks together
  transport, path        how the messages went: eager (at once), put (written by
                         the sender once a receive was there), get (read by the
                         receiver); - where the library does not say
                         One-sided: direct, or message (the owner's process helped)
                         Memory of devices: +direct (by the network interface)
                         or +staged (through the host); HETCOMM_DEVICE_PATH chooses
  #wrong                 with --check: bytes that differ; of collectives: elements
  algbw, busbw[GB/s]     collectives: size over time, and what of that crosses
                         the busiest link; GB are 10^9 bytes
  idle peer, computing   overlap: time until the data was there, with a waiting
  peer[usec]             and with a computing receiver (medians)
  chunk, depth           staging: as asked for; JSON's chunk_bytes is what was used
  copy, wire, both       staging: the slower side's copies alone, messages from host
  [MB/s]                 to host, and staged ones
  forecast, of slower(%) staging: what chunks in all stages at once would give; both
                         in percent of the slower one of copy and wire
  of cores(%)            the same: both in percent of what two processors allow, by
                         the time that copies and messages alone take of them
  hetcomm/..., ratio     --interleave: another way; above 1 the first is better
  JSON is one object: "meta" (version, host, command, peers, comparison) and
  "rows"; CSV has the fields of a row as columns, rounded as in the table. What was
  not measured is null, or an empty field.

COMPARISON
  All implementations run the same loops over their own calls. A round measures
  each of them once, in processes of their own and in an order that rotates, so
  that noise hits all alike. Before and after each of these launches a probe times
  the way of a cache line between the two cores. Virtual machines are moved
  between near and far cores while they run, which changes the latency of every
  library by several times; a ratio is therefore taken of two measurements of one
  round and one placement (near, far, remote), and others are not compared.
  Printed are the median ratio with the smallest and the largest, its geometric
  mean over the sizes, and the worst size. Above 1, hetcomm is better. "/no-cma"
  is a library without single copy by process_vm_readv. iperf3 is one TCP stream
  and memcpy one core's copy; they stand beside every size of the bandwidth test,
  memcpy also beside puts and gets: to and from memory that another process mapped.
  UCX runs all one-sided tests but put_notify. perftest is the verbs themselves,
  server and client on this host, whatever hetcomm's transport is: ib_write_*
  beside put, ib_send_* beside messages and put_notify, ib_read_* beside get,
  ib_atomic_* beside fetch_add.

ENVIRONMENT
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
                         make this process one rank of a job, as torchrun does
  HETCOMM_*              settings of the library; hetcomm_info --variables
  HETCOMM_PYTHON         interpreter for --compare and --plot (python3 in PATH,
                         or /usr/bin/python3 where that one lacks something)
  CXX                    compiler for the runners of the peers

EXIT STATUS
  0  measured   1  it failed, a peer is missing, or bytes were wrong   2  bad usage

EXAMPLES
  hetcomm_bench                               a look at this host
  hetcomm_bench latency -b 1 -e 4K --transport shm
  hetcomm_bench bandwidth --window 1 --check --format json -o result.json
  hetcomm_bench overlap --transport tcp
  hetcomm_bench latency,bandwidth --compare ucx,mpi --plot compare.svg
  hetcomm_bench put --transport shm --compare ucx,memcpy
  hetcomm_bench latency --transport rdma,tcp --memory sim-address --interleave
  hetcomm_bench put_latency --transport rdma --nic mlx5_0 --compare perftest
  mpirun -np 16 hetcomm_bench links --format json -o links.json --plot links.svg
  mpirun -np 16 --map-by node hetcomm_bench affinity --transport rdma
  hetcomm_bench --listen                      here, and there:
  hetcomm_bench bandwidth here.example.org)";

}  // namespace bench
