# Sourced by tools/workshop/figures.sh, in the root of the project; "$work" is a directory for what it makes.
# A roofline from datasheet numbers and formulas.
gnuplot 08_fused_kernels/roofline.gnuplot
echo "drew 08_fused_kernels/roofline.svg"
