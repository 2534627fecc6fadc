package placeholder

import "fmt"

// pattern appends the shapes behind the letters.
type pattern func(b []byte, p *palette, d *dice) []byte

var patterns = [...]pattern{circles, waves, tiles, rings, stripes, hills, dots}

// circles are three large circles that overlap.
func circles(b []byte, p *palette, d *dice) []byte {
	left := d.between(100, 200)
	for _, c := range []struct {
		x, y, r int
		fill    string
	}{
		{left, d.between(120, 220), d.between(150, 190), p.shape},
		{width - left + d.between(-30, 30), d.between(140, 260), d.between(120, 180), p.accent},
		{width/2 + d.between(-80, 80), height - d.between(0, 60), d.between(140, 200), p.shape},
	} {
		b = fmt.Appendf(b, `<circle cx="%d" cy="%d" r="%d" fill="%s" fill-opacity=".8"/>`, c.x, c.y, c.r, c.fill)
	}
	return b
}

// waves are three layers of waves.
func waves(b []byte, p *palette, d *dice) []byte {
	for i, fill := range []string{p.accent, p.shape, p.ground} {
		y, lift, from := 150+i*100+d.between(-20, 20), d.between(40, 70), -d.between(0, 200)
		b = fmt.Appendf(b, `<path d="M%d %dq%d %d 200 0t200 0 200 0 200 0 200 0V%dH%dZ" fill="%s" fill-opacity=".85"/>`,
			from, y, width/6, -2*lift, height, from, fill)
	}
	return b
}

// tiles are quarters of circles in a grid, each turned at random.
func tiles(b []byte, p *palette, d *dice) []byte {
	const side = 160
	var fills [2][]byte
	for y := 0; y < height; y += side {
		for x := 0; x < width; x += side {
			i := d.below(5)
			if i >= len(fills) {
				i %= len(fills)
			}
			fills[i] = corner(fills[i], x, y, side, d.below(4))
		}
	}
	for i, fill := range []string{p.shape, p.accent} {
		b = fmt.Appendf(b, `<path d="%s" fill="%s"/>`, fills[i], fill)
	}
	return b
}

// corner appends the path of a quarter of a circle around one corner of a square.
func corner(b []byte, x, y, side, which int) []byte {
	switch which {
	case 0:
		return fmt.Appendf(b, "M%d %dh%da%d %d 0 0 1 %d %dz", x, y, side, side, side, -side, side)
	case 1:
		return fmt.Appendf(b, "M%d %dv%da%d %d 0 0 1 %d %dz", x+side, y, side, side, side, -side, -side)
	case 2:
		return fmt.Appendf(b, "M%d %dh%da%d %d 0 0 1 %d %dz", x+side, y+side, -side, side, side, side, -side)
	default:
		return fmt.Appendf(b, "M%d %dv%da%d %d 0 0 1 %d %dz", x, y+side, -side, side, side, side, side)
	}
}

// rings are rings around a point near the edge.
func rings(b []byte, p *palette, d *dice) []byte {
	x, y := d.below(2)*width+d.between(-40, 40), d.below(2)*height+d.between(-40, 40)
	step := d.between(72, 92)
	fills := []string{p.shape, p.accent}
	for i := range 6 {
		b = fmt.Appendf(b, `<circle cx="%d" cy="%d" r="%d" fill="none" stroke="%s" stroke-width="%d"/>`,
			x, y, step/2+i*step*5/4, fills[i%2], step*2/3)
	}
	return b
}

// stripes are diagonal bars with round ends, which come from above and from below in turn.
func stripes(b []byte, p *palette, d *dice) []byte {
	const gap, beyond = 108, 60
	lean := 1 - 2*d.below(2)
	for i := range 7 {
		fill := p.shape
		from, to := -beyond, d.between(160, 400)
		if i%2 == 1 {
			fill = p.accent
			from, to = height+beyond, d.between(80, 320)
		}
		at := func(y int) int { return i*gap - 4 + lean*(height/2-y)/2 }
		b = fmt.Appendf(b, `<path d="M%d %dL%d %d" stroke="%s" stroke-width="58" stroke-linecap="round"/>`, at(from), from, at(to), to, fill)
	}
	return b
}

// hills are a sun and two rows of hills.
func hills(b []byte, p *palette, d *dice) []byte {
	sun, peak := d.between(120, 520), d.between(150, 490)
	b = fmt.Appendf(b, `<circle cx="%d" cy="%d" r="%d" fill="%s"/>`, sun, d.between(90, 150), d.between(50, 80), p.accent)
	b = fmt.Appendf(b, `<path d="M%d %dL%d %dL%d %dZ" fill="%s" fill-opacity=".6"/>`,
		peak-360, height, peak, d.between(130, 190), peak+360, height, p.shape)
	return fmt.Appendf(b, `<path d="M-80 %dL%d %dL%d %dL%d %dL720 %dZ" fill="%s"/>`,
		height, d.between(80, 200), d.between(230, 290), d.between(280, 360), d.between(370, 410), d.between(430, 560), d.between(230, 290), height, p.shape)
}

// dots are rows of dots that grow from one side to the other.
func dots(b []byte, p *palette, d *dice) []byte {
	const gap = 80
	down := d.below(2) == 1
	accent, least, growth, shift := d.below(6), d.between(10, 18), d.between(6, 10), d.below(gap/2)
	for row := range 6 {
		size, y, fill := least+row*growth, gap/2+row*gap, p.shape
		if !down {
			y = height - y
		}
		if row == accent {
			fill = p.accent
		}
		b = fmt.Appendf(b, `<path d="M%d %dh%d" stroke="%s" stroke-width="%d" stroke-dasharray="0 %d" stroke-linecap="round"/>`,
			-shift-row%2*gap/2, y, width+2*gap, fill, size, gap)
	}
	return b
}
