# Reads a --trace of one rank; prints live memory whenever it changes: the time in seconds from the first forward on,
# and megabytes per category of memory.h. A value lives from the operator that writes it, or first adds to zeros, to the
# last one that uses it before the next write. Weights and optimizer states live to the end: a checkpoint reads them.
#
# An allocation is cut into pieces: bytes that operators only use together. born: the operator that wrote the value in
# a piece, "" if it has none; last: the last one that used it.

function field(key) {                           # a number of the event, or its text without the quotes
    if (!match($0, "\"" key "\":(\"[^\"]*\"|[-0-9.]+)")) return ""
    text = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
    gsub(/"/, "", text)
    return text
}

function cut(at,    i, n) {                     # makes byte `at` the start of a piece
    n = pieces
    for (i = 1; i <= n; i++)
        if (first[i] < at && at < end[i]) {
            first[++pieces] = at; end[pieces] = end[i]; end[i] = at
            category[pieces] = category[i]; born[pieces] = born[i]; last[pieces] = last[i]
        }
}

function lasts(i) { return category[i] ~ /parameters|master|optimizer/ }

function end_value(i, stays) {                  # unless it was never used
    if (born[i] != "" && (last[i] > born[i] || stays)) {
        change[2 * born[i], category[i]] += end[i] - first[i]
        if (!stays) change[2 * last[i] + 1, category[i]] -= end[i] - first[i]
    }
    born[i] = ""
}

function use(how, i) {                          # an operator that overwrites what it reads needs the memory once
    if (how == "0" || (how == "=" && last[i] != operators)) end_value(i, 0)
    if (how == "0") return
    if (born[i] == "" && (how ~ /[=+]/ || lasts(i))) born[i] = how ~ /[=+]/ ? operators : 0
    last[i] = operators
}

BEGIN { categories = split("parameters master gradients optimizer activations communication workspace", name) }
/"name":"forward"/ && start == "" { start = field("ts") + 0 }
/"ph":"i"/ {
    split(field("operands"), word, " ")
    first[++pieces] = word[2]; end[pieces] = word[2] + word[3]; category[pieces] = field("cat"); born[pieces] = ""
}
/"takes"/ { lines[++count] = $0 }               # allocations come after them in the file

END {
    for (operators = 1; operators <= count; operators++) {
        $0 = lines[operators]
        time[2 * operators] = field("ts") + 0; time[2 * operators + 1] = field("ts") + field("dur")
        n = split(field("operands"), operand, "; "); split(field("takes"), rule, "; ")
        for (k = 1; k <= n; k++) {
            split(operand[k], word, " ")
            cut(word[2]); cut(word[2] + word[3])
        }
        for (order = 0; order < 4; order++)     # reads, additions, writes, zeros
            for (k = 1; k <= n; k++) {
                how = substr(rule[k], 1, 1)
                if ((how == "+") + 2 * (how == "=") + 3 * (how == "0") != order) continue
                split(operand[k], word, " ")
                for (i = 1; i <= pieces; i++)
                    if (word[2] <= first[i] && end[i] <= word[2] + word[3]) use(how, i)
            }
    }
    for (i = 1; i <= pieces; i++) end_value(i, lasts(i))
    for (i = 0; i <= 2 * count + 1; i++) {
        changes = 0; line = ""
        for (c = 1; c <= categories; c++) {
            changes += (i, name[c]) in change
            live[c] += change[i, name[c]]
            line = line " " live[c] / 1e6
        }
        if (changes && time[i] >= start) print (time[i] - start) / 1e6 line
    }
}
