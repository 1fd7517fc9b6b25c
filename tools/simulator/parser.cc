/* Reads PTX as nvcc writes it: finds the kernels of a program in it, and decodes them. What this file and the tables of
 * instructions do not know is an error that names it. */
#include "ptx.h"

#include <ctype.h>
#include <cxxabi.h>
#include <stdlib.h>
#include <string.h>

typedef std::string_view View;

/* A statement: @guard name words. Brackets group words, which the instruction's name says as well. */
struct Statement {
    View whole, guard, name;
    std::vector<View> words;

    explicit Statement(View v) : whole(v)
    {
        static const char *const between = " \t\r\n,|{}[]()";
        size_t at, end = 0;

        while ((at = v.find_first_not_of(between, end)) != View::npos) {
            end = std::min(v.find_first_of(between, at), v.size());
            const View word = v.substr(at, end - at);
            if (word[0] == '@')
                guard = word.substr(1);
            else if (name.empty())
                name = word;
            else
                words.push_back(word);
        }
    }
};

static bool starts_with(View v, View with)
{
    return v.substr(0, with.size()) == with;
}

static int64_t integer(View v)
{
    const std::string text(v);

    return text[0] == '-' ? strtoll(text.c_str(), NULL, 0) : (int64_t)strtoull(text.c_str(), NULL, 0);
}

/* Bytes of a type as u8, s32, bf16x2; 1 for pred; 0: no type. */
static int type_bytes(View type)
{
    const size_t digit = type.find_first_of("0123456789");
    const View kind = type.substr(0, digit);

    if (type == "pred")
        return 1;
    if (digit == View::npos || (kind != "u" && kind != "s" && kind != "b" && kind != "f" && kind != "bf"))
        return 0;
    return atoi(type.data() + digit) / 8 * (type.find('x') != View::npos ? 2 : 1);
}

/* A declaration of a parameter or of shared memory: [.align A] .type name[count] */
struct Declared {
    View name;
    int align, bytes;                           /* bytes: 0 for name[], whose size the launch gives */
};

static Declared declaration(const std::vector<View> &words)
{
    const size_t at = words[0] == ".align" ? 2 : 0;
    const int size = type_bytes(words[at].substr(1));
    const bool counted = isdigit((unsigned char)words.back()[0]);
    const bool array = counted || words.back().end()[0] == '[';

    return {words[words.size() - 1 - counted], at ? (int)integer(words[1]) : size,
            size * (counted ? (int)integer(words.back()) : !array)};
}

struct Register {
    uint32_t at;
    int width;
};

struct Parser {
    Kernel &k;
    std::map<View, Register> registers = {};    /* %r of "%r<10>", or a whole name */
    std::map<std::pair<int, uint64_t>, uint32_t> constants = {};
    std::map<View, int64_t> shared = {};        /* addresses; -1: after the static ones */
    std::map<View, int> labels = {};
    std::vector<std::pair<size_t, View>> branches = {};
    uint32_t file = 0, line = 0;
    View statement = {};

    [[noreturn]] void unknown(const char *what, View v)
    {
        simulated_error("%s:%u (%s): the simulator does not know the %s \"%.*s\" in \"%.*s\"", k.source(file), line,
                        k.name.c_str(), what, (int)v.size(), v.data(), (int)statement.size(), statement.data());
    }

    static int bytes_of(int width)              /* of a register's 32 lanes */
    {
        return width == 1 ? 64 : LANES * width;
    }

    uint32_t new_register(int width)
    {
        k.file_bytes += bytes_of(width);
        return k.file_bytes - bytes_of(width);
    }

    void declare_registers(const std::vector<View> &words)      /* .reg .b32 %r<10>; or .reg .b16 low, high; */
    {
        const int width = type_bytes(words[0].substr(1));

        for (size_t w = 1; w < words.size(); w++) {
            const size_t angle = words[w].find('<');
            registers[words[w].substr(0, angle)] = {k.file_bytes, width};
            k.file_bytes += bytes_of(width) * (angle == View::npos ? 1 : integer(words[w].substr(angle + 1)));
        }
    }

    void declare_shared(const std::vector<View> &words)
    {
        const Declared d = declaration(words);

        if (d.bytes) {
            k.static_shared = (k.static_shared + d.align - 1) / d.align * d.align;
            shared[d.name] = k.static_shared;
            k.static_shared += d.bytes;
        } else {
            shared[d.name] = -1;
        }
    }

    Register find_register(View name)           /* width 0: none */
    {
        const size_t digits = name.find_last_not_of("0123456789") + 1;
        auto found = registers.find(name);

        if (found != registers.end())
            return found->second;
        found = registers.find(name.substr(0, digits));
        if (found == registers.end() || digits == name.size())
            return {0, 0};
        const Register r = found->second;
        return {r.at + atoi(name.data() + digits) * bytes_of(r.width), r.width};
    }

    /* %tid.x; NULL: no special register */
    uint32_t *find_special(View name)
    {
        static const View names[SPECIALS] = {"%tid.", "%ntid.", "%ctaid.", "%nctaid."};

        for (int s = 0; s < SPECIALS; s++)
            if (starts_with(name, names[s]) && name.size() == names[s].size() + 1)
                return &k.special[s][name.back() - 'x'];
        return NULL;
    }

    /* A register, a number or the address of shared memory, as a register of that width. */
    uint32_t operand(View v, int width)
    {
        const Register r = find_register(v);
        uint64_t value;

        if (r.width == width)
            return r.at;
        if (v == "_")                           /* a result that nobody reads */
            return new_register(width);
        if (uint32_t *special = find_special(v))
            return *special ? *special : *special = new_register(4);
        if (shared.count(v))
            value = shared[v] >= 0 ? shared[v] : (k.static_shared + 127) / 128 * 128;
        else if (starts_with(v, "0f") || starts_with(v, "0d"))          /* the bits of a number */
            value = strtoull(v.data() + 2, NULL, 16);
        else if (isdigit((unsigned char)v[0]) || v[0] == '-')
            value = width == 1 ? (integer(v) ? ~0u : 0) : integer(v);
        else
            unknown(r.width ? "use of a register of another width" : "operand", v);
        uint32_t &at = constants[{width, value}];
        if (!at) {
            at = new_register(width);
            k.constants.push_back({at, width, value});
        }
        return at;
    }

    /* register+offset, name+offset */
    uint32_t address(Instruction &i, View v)
    {
        const View name = v.substr(0, v.find('+'));
        const int width = find_register(name).width;

        i.offset = name.size() < v.size() ? integer(v.substr(name.size() + 1)) : 0;
        if (i.space != PARAMETERS) {
            i.address_width = width ? width : i.space == SHARED ? 4 : 8;
            return operand(name, i.address_width);
        }
        for (const Parameter &p : k.parameters)
            if (name == p.name) {
                i.offset += p.offset;
                return 0;
            }
        unknown("parameter", name);
    }

    bool decode_memory(Instruction &i, const Statement &s);
    void decode(Statement s);
    void parse(const Module &module);
};

/* ld and st have many forms; mov with {a, b} packs or unpacks registers. Returns whether it is one of these. */
bool Parser::decode_memory(Instruction &i, const Statement &s)
{
    const std::vector<View> &w = s.words;
    const bool loads = starts_with(s.name, "ld.");
    const View type = s.name.substr(s.name.rfind('.') + 1);

    i.count = w.size() - 1, i.bytes = type_bytes(type), i.extends_sign = type[0] == 's';
    if (loads || starts_with(s.name, "st.")) {
        i.run = loads ? load : store;
        i.from[0] = address(i, loads ? w.back() : w[0]);
        i.width = find_register(w[!loads]).width ? find_register(w[!loads]).width : i.bytes;    /* may be wider */
        for (int v = 0; v < i.count && v < 4; v++)
            (loads ? i.to[v] : i.from[1 + v]) = operand(w[v + !loads], i.width);
        return i.bytes != 0 && i.count <= 4;
    }
    if (!starts_with(s.name, "mov.") || i.count < 2)
        return false;
    const bool packs = find_register(w[0]).width == i.bytes;
    i.width = i.bytes, i.bytes /= i.count;
    i.run = packs ? pack : unpack;
    (packs ? i.to : i.from)[0] = operand(packs ? w[0] : w.back(), i.width);
    for (int v = 0; v < i.count; v++)
        (packs ? i.from : i.to)[v] = operand(w[v + packs], i.bytes);
    return true;
}

static const Operation *find_operation(const std::string &name)
{
    const size_t rn = name.find(".rn.f");       /* add.rn.f32 is add.f32 */

    for (const Table *table : {&arithmetic, &of_warps})
        if (const auto found = table->find(name); found != table->end())
            return &found->second;
    return rn == std::string::npos ? NULL : find_operation(std::string(name).erase(rn, 3));
}

void Parser::decode(Statement s)
{
    const std::string name(s.name), dotted = name + ".";
    const auto has = [&](const char *part) { return dotted.find(part) != std::string::npos; };
    Instruction i = {};

    i.file = file, i.line = line, i.text = s.whole;
    i.kind = kind_of(name);
    i.space = has(".global.") ? GLOBAL : has(".shared.") ? SHARED : has(".param.") ? PARAMETERS : GENERIC;
    if (has(".local.") || has(".const.") || has(".relaxed.") || has(".acquire.") || has(".release."))
        unknown("instruction", s.name);
    if (!s.guard.empty()) {
        i.guard_not = s.guard[0] == '!';
        i.guard = operand(s.guard.substr(i.guard_not), 1);
    }
    if (decode_memory(i, s)) {
        k.code.push_back(i);
        return;
    }
    const Operation *op = find_operation(name);
    size_t word = 0;
    if (!op)
        unknown("instruction", s.name);
    i.run = op->run, i.control = op->control;
    if (i.run == copy_async)
        i.bytes = integer(s.words.at(2));
    if (i.run == copy_async && s.words.size() == 3)             /* copies all its bytes */
        s.words.push_back(s.words[2]);
    const auto next = [&] { return word < s.words.size() ? s.words[word++] : (unknown("form of", s.name), View()); };
    for (int x = 0; x < 4 && op->to[x]; x++)
        i.to[x] = operand(next(), op->to[x]);
    if (i.control == BARRIER && s.words.at(word) != "0")
        unknown("barrier", s.words[word]);
    for (int x = 0; x < 10 && op->from[x]; x++)
        if (op->from[x] == LABEL)
            branches.push_back({k.code.size(), next()});
        else
            i.from[x] = op->from[x] == ADDRESS ? address(i, next()) : operand(next(), op->from[x]);
    if (word < s.words.size())
        unknown("form of", s.name);
    k.code.push_back(i);
}

/* Parses the head, then statement by statement up to the brace that closes the body. */
void Parser::parse(const Module &module)
{
    const View text = k.text;
    const size_t body = text.find("\n{") + 1;
    const size_t open = text.find('(');
    int depth = 0;

    if (open < body)                            /* .param .u64 name, .param ... */
        for (size_t at = open + 1, end, close = text.find("\n)"); at < close; at = end + 1) {
            end = std::min(text.find(',', at), close);
            const Statement s(text.substr(at, end - at));
            if (s.words.empty())
                break;
            const Declared d = declaration(s.words);
            k.parameter_bytes = (k.parameter_bytes + d.align - 1) / d.align * d.align;
            k.parameters.push_back({d.name, k.parameter_bytes, d.bytes});
            k.parameter_bytes += d.bytes;
        }
    if (const size_t at = text.find(".maxntid"); at < body) {
        k.most_threads = 1;
        for (const View n : Statement(text.substr(at, text.find('\n', at) - at)).words)
            k.most_threads *= integer(n);
    }
    for (const std::string &declared : module.shared)
        if (const Statement s(declared); text.find(declaration(s.words).name) != View::npos)
            declare_shared(s.words);
    for (size_t at = body, end; at < text.size(); at = end) {
        const View rest = text.substr(at);
        const size_t mark = text.find_first_of(";:\n", at);
        end = at + 1;
        if (rest[0] == '{' || rest[0] == '}') {
            depth += rest[0] == '{' ? 1 : -1;
            if (depth == 0)
                break;                          /* what follows is not the kernel's */
        } else if (starts_with(rest, ".loc")) {
            sscanf(rest.data(), ".loc %u %u", &file, &line);
            end = text.find('\n', at);
        } else if (starts_with(rest, "//")) {
            end = text.find('\n', at);
        } else if (!isspace((unsigned char)rest[0]) && text[mark] == ':') {
            labels[text.substr(at, mark - at)] = k.code.size();
            end = mark + 1;
        } else if (!isspace((unsigned char)rest[0])) {
            end = text.find(';', at) + 1;
            statement = text.substr(at, end - 1 - at);
            const Statement s(statement);
            if (s.name == ".reg")
                declare_registers(s.words);
            else if (s.name == ".shared")
                declare_shared(s.words);
            else if (s.name != ".pragma")
                decode(s);
        }
    }
    decode(Statement("ret"));                   /* for labels at the end */
    for (const auto &b : branches) {
        if (!labels.count(b.second))
            unknown("label", b.second);
        k.code[b.first].target = labels[b.second];
    }
    k.most_dynamic_shared = (48 << 10) - k.static_shared;
}

std::string plain_name(const Kernel &k)
{
    int status;
    char *plain = abi::__cxa_demangle(k.name.c_str(), NULL, NULL, &status);
    const std::string name = status ? k.name : plain;

    free(plain);
    return name.substr(0, name.find('('));
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
    if (module->files.empty())
        scan(module);
    k->files = &module->files;
    Parser{*k}.parse(*module);
    return k;
}
