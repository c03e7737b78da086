// host_src/launcher.h with a driver in this process: what many threads launch, look up, insert and forget at
// a time. Compiled and run by test_launcher_header.py, also with sanitizers. Prints what is wrong and ends
// with 1.
#include "../../host_src/launcher.h"

#include <cstdio>
#include <functional>
#include <limits>
#include <thread>

using namespace fastsgemm;

namespace {

std::atomic<int> failures{0};

void check(bool holds, const char *what, int line) {
    if (holds) return;
    ++failures;
    std::fprintf(stderr, "launcher.cpp:%d: %s\n", line, what);
}
#define CHECK(condition) check((condition), #condition, __LINE__)

// Runs a function, and returns the text of what it throws; empty if it throws nothing.
std::string thrown(const std::function<void()> &function) {
    try {
        function();
    } catch (const std::exception &error) {
        return error.what();
    }
    return "";
}

// The driver. A stream is the list of what is launched on it, and a kernel says what its arguments are.

struct Kernel {
    size_t words = 0;  // its arguments: 8 bytes each
    int refusal = 0;   // of its launch
};
struct Launched {
    const Kernel *kernel;
    LaunchConfig config;
    bool early;
    void *context;
    std::vector<uint64_t> arguments;
};
using Stream = std::vector<Launched>;

thread_local std::vector<void *> contexts;  // the stack of a thread
thread_local int current_device = 0;
thread_local int push_refusal = 0;

Driver make_driver() {
    Driver driver;
    driver.current_context = [](void **context) {
        *context = contexts.empty() ? nullptr : contexts.back();
        return 0;
    };
    driver.current_device = [](int *device) {
        *device = current_device;
        return 0;
    };
    driver.push_context = [](void *context) {
        if (push_refusal == 0) contexts.push_back(context);
        return push_refusal;
    };
    driver.pop_context = [](void **context) {
        *context = contexts.back();
        contexts.pop_back();
        return 0;
    };
    driver.launch = [](const LaunchConfig *config, void *kernel, void **arguments, void ** /*extra*/) {
        const auto *launched = static_cast<const Kernel *>(kernel);
        if (launched->refusal != 0) return launched->refusal;
        Launched record{launched,
                        *config,
                        config->attribute_count != 0,
                        contexts.empty() ? nullptr : contexts.back(),
                        {}};
        if (record.early) {
            CHECK(config->attributes->id == PROGRAMMATIC_STREAM_SERIALIZATION);
            CHECK(config->attributes->value.flag == 1);
        }
        for (size_t i = 0; i < launched->words; ++i) {
            uint64_t word = 0;
            std::memcpy(&word, arguments[i], sizeof(word));
            record.arguments.push_back(word);
        }
        static_cast<Stream *>(config->stream)->push_back(record);
        return 0;
    };
    driver.error_name = [](int result, const char **name) {
        *name = result == 700 ? "CUDA_ERROR_FAKE" : nullptr;
        return 0;
    };
    return driver;
}
const Driver driver = make_driver();

int context_of[2];  // whose addresses are the primary contexts of two devices

// A plan with a launch for each case: `plain` always, `reading` early where A and B are read, `scaling` where
// beta is not 0. Each gets the address of C, that of A plus 24 bytes, alpha and beta, and a word of its own
// at the end.
constexpr size_t ARGUMENTS = 4;
const Kernel plain{ARGUMENTS}, reading{ARGUMENTS}, scaling{ARGUMENTS};

std::shared_ptr<const Plan> make_plan(int device, int32_t K, size_t words) {
    auto plan = std::make_shared<Plan>();
    plan->context = &context_of[device];
    plan->device = device;
    plan->K = K;
    plan->bounds = {-64, 64, -32, 32, 0, 0};
    plan->words.resize(words);
    plan->workspace = 4096;
    plan->workspace_cases = 0b1100;
    const uint32_t first = sizeof(Values) / 8;
    plan->offsets = {{first, Values::A, 24}};
    uint64_t own = 100;
    for (const auto &[kernel, cases] :
         {std::pair(&plain, 0b1111U), std::pair(&reading, 0b1100U), std::pair(&scaling, 0b1010U)}) {
        const auto last = static_cast<uint32_t>(words - (own - 99));
        plan->words[last] = own++;
        plan->launches.push_back({"kernel",
                                  const_cast<Kernel *>(kernel),
                                  {7, 5, 3},
                                  128,
                                  512,
                                  kernel == &reading,
                                  cases,
                                  {8 * Values::C, 8 * first, 56, 8 * last}});
    }
    return plan;
}

uint64_t bits_of(float low, float high) {
    const float both[] = {low, high};
    uint64_t bits = 0;
    std::memcpy(&bits, both, sizeof(bits));
    return bits;
}

// Launch a plan, and check every launch that arrives.
void launch(const Plan &plan, float alpha, float beta, uint64_t a, uint64_t c) {
    Values values;
    values.address[Values::A] = a;
    values.address[Values::C] = c;
    plan.set_scalars(values, alpha, beta);
    const bool reads = alpha != 0.0F && plan.K != 0;
    CHECK(plan.workspace_of(values) == (reads ? 4096 : 0));
    Stream stream;
    plan.launch(driver, &stream, values);
    std::vector<const Kernel *> wanted{&plain};
    if (reads) wanted.push_back(&reading);
    if (beta != 0.0F) wanted.push_back(&scaling);
    CHECK(stream.size() == wanted.size());
    for (size_t i = 0; i < std::min(stream.size(), wanted.size()); ++i) {
        const Launched &each = stream[i];
        CHECK(each.kernel == wanted[i] && each.early == (wanted[i] == &reading));
        CHECK(each.config.grid[0] == 7 && each.config.grid[1] == 5 && each.config.grid[2] == 3);
        CHECK(each.config.block[0] == 128 && each.config.block[1] == 1 && each.config.shared_bytes == 512);
        const uint64_t own = wanted[i] == &plain ? 100 : wanted[i] == &reading ? 101 : 102;
        const float scaled = reads ? alpha : beta != 0.0F ? -0.0F : 0.0F;
        CHECK((each.arguments == std::vector<uint64_t>{c, a + 24, bits_of(scaled, beta), own}));
        CHECK(each.context == plan.context || current_device == plan.device);
    }
}

Key key_of(int64_t which) {
    Key key;
    for (int64_t word : {which % 7, which, int64_t{1} << 40}) key.add(word);
    return key;
}

std::shared_ptr<Entry> entry_of(int64_t id, std::shared_ptr<const Plan> plan) {
    auto entry = std::make_shared<Entry>();
    entry->id = id;
    entry->plan = std::move(plan);
    return entry;
}

void test_key() {
    Key key, other;
    for (int64_t i = 0; i < 56; ++i) key.add(i), other.add(i);
    CHECK(key.fits() && key == other && key.hash() == other.hash());
    key.add(0);
    CHECK(!key.fits());
    CHECK(!(key_of(1) == key_of(8)) && key_of(1) == key_of(1));
    Key zero, none;
    zero.add(0);
    CHECK(!(zero == none));
}

void test_scalars() {
    const auto plan = make_plan(0, 16, 64), empty = make_plan(0, 0, 64);
    Values values;
    plan->set_scalars(values, 2.0F, 0.5F);
    CHECK(values.alpha == 2.0F && values.beta == 0.5F && values.steps == 16 && Plan::case_of(values) == 3);
    for (const auto *each : {plan.get(), empty.get()}) {
        each->set_scalars(values, each == empty.get() ? 2.0F : 0.0F, 0.5F);
        CHECK(std::signbit(values.alpha) && values.steps == 0 && Plan::case_of(values) == 1);
        each->set_scalars(values, each == empty.get() ? 2.0F : 0.0F, -0.0F);
        CHECK(!std::signbit(values.alpha) && values.steps == 0 && Plan::case_of(values) == 0);
    }
    plan->set_scalars(values, std::numeric_limits<float>::quiet_NaN(), 0.0F);
    CHECK(std::isnan(values.alpha) && values.steps == 16);
}

void test_apart() {
    const auto plan = make_plan(0, 16, 64);
    const auto apart = [&](uint64_t a, uint64_t b, uint64_t source) {
        Values values;
        values.address[Values::C] = uint64_t{1} << 63;
        values.address[Values::A] = values.address[Values::C] + a;
        values.address[Values::B] = values.address[Values::C] + b;
        values.address[Values::SOURCE] = values.address[Values::C] + source;
        return plan->apart(values);
    };
    CHECK(apart(64, 32, 0) && apart(-64, -32, 0));
    CHECK(!apart(63, 32, 0) && !apart(-63, 32, 0) && !apart(64, 31, 0) && !apart(64, -31, 0));
}

void test_addresses() {
    Plan plan = *make_plan(0, 16, 64);
    const auto can_address = [&](uint64_t a, uint64_t b) {
        Values values;
        values.address[Values::A] = a;
        values.address[Values::B] = b;
        return plan.can_address(values);
    };
    constexpr uint64_t END = uint64_t{1} << 48;
    plan.address_bits = 48;
    CHECK(can_address(END - 1, 0) && can_address(0, END - 1));
    CHECK(!can_address(END, 0) && !can_address(0, END));
    plan.address_bits = 64;
    CHECK(can_address(~uint64_t{0}, ~uint64_t{0}));
}

void test_contexts() {
    const auto plan = make_plan(1, 16, 64);
    int green = 0;
    for (void *context : {static_cast<void *>(nullptr), static_cast<void *>(&context_of[0]),
                          static_cast<void *>(&context_of[1]), static_cast<void *>(&green)}) {
        contexts.clear();
        if (context != nullptr) contexts.push_back(context);
        current_device = context == &context_of[1] || context == &green ? 1 : 0;
        const auto before = contexts;
        launch(*plan, 1.0F, 1.0F, 256, 512);
        CHECK(contexts == before);
    }
    contexts = {&context_of[0]};
    current_device = 0;
    push_refusal = 700;
    const auto refused = thrown([&] { launch(*plan, 1.0F, 1.0F, 256, 512); });
    CHECK(refused == "making a device current failed: CUDA_ERROR_FAKE");
    push_refusal = 0;
    CHECK(contexts.size() == 1);
}

void test_refusals() {
    Kernel refusing{0, 700};
    Plan plan = *make_plan(0, 16, 64);
    plan.launches.insert(plan.launches.begin() + 1,
                         {"refused", &refusing, {7, 5, 3}, 128, 0, false, 0b1111, {}});
    contexts.clear();
    current_device = -1;
    const auto refused = thrown([&] { launch(plan, 1.0F, 1.0F, 256, 512); });
    CHECK(refused == "launching refused with 7 x 5 x 3 blocks of 128 threads failed: CUDA_ERROR_FAKE");
    CHECK(contexts.empty());
    refusing.refusal = 701;
    CHECK(thrown([&] { launch(plan, 1.0F, 1.0F, 256, 512); }).find("CUDA error 701") != std::string::npos);
    CHECK(thrown([] { Driver::open("libm.so.6"); }) == "libm.so.6 has no cuCtxGetCurrent");
    CHECK(!thrown([] { Driver::open("/no/such/library.so"); }).empty());
}

void test_table() {
    Table table;
    const auto plan = make_plan(0, 16, 64), other = make_plan(0, 32, 64);
    const auto first = entry_of(1, plan);
    table.insert(key_of(1), first, table.epoch());
    ++table.find(key_of(1))->calls;
    table.insert(key_of(1), entry_of(1, plan), table.epoch());
    CHECK(table.find(key_of(1)) == first && first->calls == 1);  // the same again goes on counting
    table.insert(key_of(1), entry_of(1, other), table.epoch());
    CHECK(table.find(key_of(1))->plan == other && table.size() == 1 && table.entries().size() == 2);
    const auto epoch = table.epoch();
    CHECK(table.take().size() == 2 && table.size() == 0 && table.find(key_of(1)) == nullptr);
    table.insert(key_of(1), entry_of(1, plan), epoch);  // it was begun before the table was emptied
    CHECK(table.size() == 0);
}

// Some threads look up and launch, and insert what is missing; another empties the table and counts.
void test_threads() {
    constexpr int THREADS = 6, ROUNDS = 1500, KEYS = 40;
    Table table;
    std::vector<std::shared_ptr<const Plan>> plans;
    for (int i = 0; i < KEYS; ++i) plans.push_back(make_plan(i % 2, i % 5, i % 3 == 0 ? 1000 : 64));
    std::atomic<int64_t> hits{0};
    std::atomic<bool> stop{false};
    std::vector<std::shared_ptr<Entry>> taken;
    std::thread other([&] {
        while (!stop) {
            for (auto &each : table.take()) taken.push_back(std::move(each));
            for (const auto &each : table.entries()) CHECK(each->calls >= 0);
            std::this_thread::yield();
        }
    });
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] {
            contexts.clear();
            current_device = thread % 3 - 1;
            for (int round = 0; round < ROUNDS; ++round) {
                const int which = (round * (thread + 1)) % KEYS;
                const Key key = key_of(which);
                const auto epoch = table.epoch();
                if (const auto entry = table.find(key)) {
                    CHECK(entry->plan == plans[which]);
                    const uint64_t address = 256 * (thread * ROUNDS + round + 1);
                    launch(*entry->plan, round % 4 == 0 ? 0.0F : 0.5F * thread + 1.0F,
                           round % 3 == 0 ? 0.0F : 2.0F, address, address + (uint64_t{1} << 40));
                    ++entry->calls;
                    ++hits;
                } else {
                    table.insert(key, entry_of(which, plans[which]), epoch);
                }
            }
            CHECK(contexts.empty());
        });
    }
    for (auto &each : threads) each.join();
    stop = true;
    other.join();
    for (auto &each : table.take()) taken.push_back(std::move(each));
    int64_t counted = 0;
    for (const auto &each : taken) counted += each->calls;
    CHECK(counted == hits && hits > 0);  // no call is lost
}

}  // namespace

int main() {
    for (const auto test : {test_key, test_scalars, test_apart, test_addresses, test_contexts, test_refusals,
                            test_table, test_threads})
        test();
    return failures == 0 ? 0 : 1;
}
