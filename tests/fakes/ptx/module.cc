/* The PTX of a program: finds kernels in it. */
#include "ptx.h"

#include <cxxabi.h>
#include <regex>
#include <stdlib.h>

std::string plain_name(const Kernel &k)
{
    int status;
    char *plain = abi::__cxa_demangle(k.name.c_str(), NULL, NULL, &status);
    const std::string name = status ? k.name : plain;

    free(plain);
    return name.substr(0, name.find('('));
}

/* ---- edits, which plant mistakes ---- */

/* SIMULATED_EDIT="kernel|old|new|n": in kernels whose name contains `kernel`, the n-th match (from 1; 0: all) of the
 * regular expression `old` becomes `new`. */
static void edit(Kernel &k)
{
    const char *wanted = getenv("SIMULATED_EDIT");
    static const std::regex form("(.*)\\|(.*)\\|(.*)\\|([0-9]+)");
    std::cmatch part, m;
    std::string text;
    int found = 0;

    if (wanted && !std::regex_match(wanted, part, form))
        simulated_error("SIMULATED_EDIT: expected kernel|old|new|n, got '%s'", wanted);
    if (!wanted || k.name.find(part[1]) == std::string::npos)
        return;
    const std::regex old(part[2].str());
    const int which = atoi(part[4].first);
    const char *at = k.text.c_str();
    for (; std::regex_search(at, m, old); at = m.suffix().first) {
        text += m.prefix();
        text += which == 0 || ++found == which ? m.format(part[3].str()) : m.str();
    }
    if (found < which)
        simulated_error("SIMULATED_EDIT: %s has %d of \"%s\"", k.name.c_str(), found, part[2].str().c_str());
    k.text = text + at;
}

/* What belongs to no kernel: the names of source files, and shared memory that functions declare. */
static void scan(Module *module)
{
    const std::string &text = module->text;

    for (size_t at = 0; (at = text.find(".file\t", at)) != std::string::npos; at++) {           /* .file 1 "name" */
        const size_t quote = text.find('"', at), end = text.find('"', quote + 1);
        module->files[atoi(text.c_str() + at + 6)] = text.substr(quote + 1, end - quote - 1);
    }
    module->files[0] = "a file without -lineinfo";
    for (size_t at = 0; (at = text.find(".shared .align", at)) != std::string::npos; at++)
        if (text[at - 1] != '\t')               /* no kernel's own */
            module->shared.push_back(text.substr(at, text.find(';', at) - at));
}

Kernel *find_kernel(Module *module, const std::string &name)
{
    Kernel *&k = module->kernels[name];

    if (k)
        return k;
    const std::string &text = module->text;
    size_t at = text.find(".entry " + name + "(");
    if (at == std::string::npos && (at = text.find(".entry " + name + "\n")) == std::string::npos)
        simulated_error("no PTX of the kernel %s: build it with code=compute_80", name.c_str());
    k = new Kernel;
    k->name = name;
    k->text = text.substr(at, std::min(text.find(".entry ", at + 1), text.find("\n\t.file", at)) - at);
    edit(*k);
    if (module->files.empty())
        scan(module);
    k->files = &module->files;
    parse_kernel(*k, *module);
    return k;
}
