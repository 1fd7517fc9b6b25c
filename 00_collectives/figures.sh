# Sourced by tools/workshop/figures.sh, in the root of the project.
# Eight collectives on four ranks: what each rank has before and after. A cell is a shard; its color is the rank that it
# comes from, or vermillion for a sum over all ranks.
awk '
    BEGIN {
        split("#0072b2 #e69f00 #009e73 #cc79a7 #d55e00", color, " ")
        print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 940 330\" width=\"940\" height=\"330\"" \
            " font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">"
        print "<title></title>\n<rect width=\"940\" height=\"330\" fill=\"#ffffff\"/>"
    }
    # name, then the rows of the four ranks before and after: a digit per shard, 5 for the sum, . for nothing
    {
        x0 = 20 + 232 * ((NR - 1) % 4); y0 = 30 + 160 * int((NR - 1) / 4)
        printf "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s</text>\n", x0 + 16, y0 - 8, $1
        for (side = 0; side < 2; side++)
            for (r = 0; r < 4; r++)
                for (s = 0; s < 4; s++) {
                    c = substr($(2 + 4 * side + r), s + 1, 1)
                    printf "<rect x=\"%d\" y=\"%d\" width=\"18\" height=\"22\" fill=\"%s\" stroke=\"#444444\"%s/>\n",
                        x0 + 16 + 108 * side + 20 * s, y0 + 28 * r, c == "." ? "#ffffff" : color[c],
                        c == "." ? " stroke-dasharray=\"2 2\"" : ""
                    if (c != ".")
                        printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#ffffff\">%s</text>\n",
                            x0 + 25 + 108 * side + 20 * s, y0 + 28 * r + 15, c == 5 ? "Σ" : c - 1
                }
        for (r = 0; r < 4; r++) printf "<text x=\"%d\" y=\"%d\">%d</text>\n", x0, y0 + 28 * r + 15, r
        printf "<text x=\"%d\" y=\"%d\" font-size=\"16\">→</text>\n", x0 + 101, y0 + 58
    }
    END { print "</svg>" }' >00_collectives/collectives.svg <<'END'
broadcast 1111 .... .... .... 1111 1111 1111 1111
reduce 1111 2222 3333 4444 5555 .... .... ....
gather 1... .2.. ..3. ...4 1234 .... .... ....
scatter 1111 .... .... .... 1... .1.. ..1. ...1
all-reduce 1111 2222 3333 4444 5555 5555 5555 5555
reduce-scatter 1111 2222 3333 4444 5... .5.. ..5. ...5
all-gather 1... .2.. ..3. ...4 1234 1234 1234 1234
all-to-all 1111 2222 3333 4444 1234 1234 1234 1234
END
echo "drew 00_collectives/collectives.svg"
