// NVRTC's part: the text of a kernel file, its few PTX instructions replaced by functions of device.h, compiled by the C++
// compiler of this machine. The machine code that the caller gets is the path of the library made.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

namespace {

struct Program {
  std::string text, log, library;
};

// Every instruction that kernels for cards before Hopper are written in.
const std::pair<const char*, const char*> INSTRUCTIONS[] = {
    {R"re(asm\("cvt\.rn\.bf16x2\.f32 [^;]*;" : "=r"\((\w+)\) : "f"\((\w+)\), "f"\((\w+)\)\);)re", "$1 = emulator::two_bf16($2, $3);"},
    {R"re(asm volatile\("cp\.async\.cg[^"]*" ::"r"\((\w+)\), "l"\((\w+)\), "r"\((\w+)\)\);)re", "emulator::copy_async($1, $2, $3);"},
    {R"re(asm volatile\("cp\.async\.commit_group;"\);)re", "emulator::commit_copies();"},
    {R"re(asm volatile\("cp\.async\.wait_group %0;" ::"n"\((\w+)\)\);)re", "emulator::wait_copies($1);"},
    {R"re(asm volatile\("ldmatrix\.[^"]*\.trans\.shared[^"]*"[^;]*"=r"\((\w+)\[0\]\)[^;]*"r"\((\w+)\)\);)re",
     "emulator::ldmatrix($1, $2, true);"},
    {R"re(asm volatile\("ldmatrix\.[^"]*\.shared[^"]*"[^;]*"=r"\((\w+)\[0\]\)[^;]*"r"\((\w+)\)\);)re",
     "emulator::ldmatrix($1, $2, false);"},
    {R"re(asm volatile\("mma\.sync\.aligned\.m16n8k16[^"]*"[^;]*"\+f"\((\w+)\[0\]\)[^;]*: "r"\((\w+)\[0\]\)[^;]*"r"\((\w+)\[0\]\)[^;]*\);)re",
     "emulator::mma($1, $2, $3);"},
    {R"re(asm volatile\("st\.release\.sys[^"]*" ::"l"\((\w+)\), "r"\((\w+)\) : "memory"\);)re", "emulator::store_release($1, $2);"},
    {R"re(asm volatile\("ld\.acquire\.sys[^"]*" : "=r"\((\w+)\) : "l"\((\w+)\) : "memory"\);)re", "$1 = emulator::load_acquire($2);"},
    {R"re(extern __shared__ __align__\(\d+\) u8 (\w+)\[\];)re", "u8* $1 = emulator::shared_memory;"},
};

std::string as_cpp(std::string text) {
  for (auto& [instruction, function] : INSTRUCTIONS) text = std::regex_replace(text, std::regex(instruction), function);
  std::string calls;
  std::regex kernel(R"(__global__\s+void\s+(?:__launch_bounds__\([^\n]*\)\s+)?(\w+)\s*\()");
  for (std::sregex_iterator it(text.begin(), text.end(), kernel), end; it != end; ++it) {
    std::string name = (*it)[1];
    calls += "extern \"C\" __attribute__((visibility(\"default\"))) void call_" + name + "(void** arguments) { emulator::call(&" + name + ", arguments); }\n";
    calls += "extern \"C\" __attribute__((visibility(\"default\"))) const size_t* const sizes_" + name + " = emulator::sizes(&" + name + ");\n";
  }
  return "#include \"" EMULATOR_FOLDER "/device.h\"\n" + text + "\n" + calls;
}

std::string run(const std::string& command, int& status) {
  std::string said;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char part[4096];
  while (size_t count = fread(part, 1, sizeof part, pipe)) said.append(part, count);
  status = pclose(pipe);
  return said;
}

}  // namespace

API int nvrtcVersion(int* major, int* minor) {
  *major = 0;
  *minor = EMULATOR_STAMP;  // what is kept of another emulator is not taken
  return 0;
}
API int nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*, const char* const*) {
  *program = new Program{text, "", ""};
  return 0;
}
API int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}
API int nvrtcCompileProgram(void* of, int num_options, const char* const* options) {
  Program& program = *static_cast<Program*>(of);
  std::string text = as_cpp(program.text), defines;
  for (int i = 0; i < num_options; i++)
    if (!strncmp(options[i], "-D", 2)) defines += std::string(" '") + options[i] + "'";
  std::string stem = EMULATOR_FOLDER "/kernels/kernel-" + std::to_string(std::hash<std::string>()(text + defines));
  // Shared memory is a kernel's own: a variable of an inline function must not be found in another's library.
  defines += " -fvisibility=hidden";
  // Another process or thread may compile the same, or have it open.
  static std::atomic<unsigned> number;
  std::string own = stem + "." + std::to_string(getpid()) + "." + std::to_string(number++);
  std::ofstream(own + ".cpp") << text;
  int status = 0;
  program.log = run("c++ -std=c++17 -O2 -w -shared -fPIC" + defines + " -o " + own + ".so " + own + ".cpp", status);
  program.library = stem + ".so";
  remove((own + ".cpp").c_str());
  return status || rename((own + ".so").c_str(), program.library.c_str()) ? 6 : 0;
}
API int nvrtcGetProgramLogSize(void* of, size_t* size) {
  *size = static_cast<Program*>(of)->log.size() + 1;
  return 0;
}
API int nvrtcGetProgramLog(void* of, char* log) {
  strcpy(log, static_cast<Program*>(of)->log.c_str());
  return 0;
}
API int nvrtcGetCUBINSize(void* of, size_t* size) {
  *size = static_cast<Program*>(of)->library.size() + 1;
  return 0;
}
API int nvrtcGetCUBIN(void* of, char* image) {
  strcpy(image, static_cast<Program*>(of)->library.c_str());
  return 0;
}
API const char* nvrtcGetErrorString(int) { return "the emulated compiler failed"; }
